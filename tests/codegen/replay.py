"""replay: every text that is generated for the samples of the tests, by name, to compare those of two versions of the package.

    PYTHONPATH=. python tests/codegen/replay.py --out before.json           # at the version to compare with
    PYTHONPATH=. python tests/codegen/replay.py --against before.json [--texts folder]

A change that moves code about, or the data that it is about, changes no text. What is refused is kept by its reason. --texts: also
write the texts themselves, one file each, for a diff of two folders. CUDA is rendered without a GPU. test_text_digests.py keeps the
texts of a few of these as a snapshot. The exit code is 1 when a text differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import tensor_graphs as tg
from tensor_graphs.codegen import backend, backend_cuda, schedule_actions, spec_to_loops
from tensor_graphs.codegen.lower import lower
from tensor_graphs.codegen.map_loops import map_loops
from tensor_graphs.codegen.pipelines import arranged
from tensor_graphs.codegen.print import c_loops, cuda_tiles, scan_c, scan_cuda
from tensor_graphs.codegen.print.cuda_loops import printed
from tensor_graphs.codegen.print.cuda_program import program_of
from tensor_graphs.kernels.kernel import LaunchCall, NotLowered, Spec
from tensor_graphs.kernels.strides import contiguous_strides
from tensor_graphs.language import dims as d
from tensor_graphs.language.anonymous_composite import part_between, part_of
from tensor_graphs.language.composite import Definition
from tensor_graphs.language.dtypes import DTYPES
from tensor_graphs.language.errors import LanguageError
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node
from tests.codegen import test_scans, test_schedule_actions, test_skinny_product, test_tiles
from tests.codegen.mapping import test_streams
from tests.codegen.passes import test_online_reductions, test_pair_moments, test_skip_masked_blocks, test_tile_rows
from tests.codegen.print import test_c_loops, test_cuda_loops, test_scan_cuda
from tests.codegen.test_generated import drawn
from tests.fuzzing.cases import Ungrown, case_of
from tests.fuzzing.stage_runs import FORMS, Case, formed
from tests.kernels.cases import CASES
from tests.language.test_scan import rnn

Texts = Iterator[tuple[str, Callable[[], str]]]
"""names, and functions that make the texts"""

FUZZED, GRAPHS = 300, 150
"""seeds of stage programs, each in all forms, and of random graphs"""


def of_call(call: LaunchCall) -> str:
    other = "" if call.otherwise is None else of_call(call.otherwise)
    return f"{call.text}\n{call.launches}\n{call.scratch}\n{other}"


def of_definition(name: str, definition: Definition) -> Texts:
    """All that the backends make of a definition, each way it is asked for."""
    def loops(*asked: bool) -> str:
        program = spec_to_loops.loops_of(definition, *asked)
        return f"{program.shared} {program.updated} {program.dear} {program.again}\n{c_loops.rendered(program)}"

    def one_pass(apart: bool) -> str:
        program = spec_to_loops.one_pass_of(definition, apart)
        return "none" if program is None else f"{program.shared} {program.updated}\n{c_loops.rendered(program)}"

    def strided() -> str:
        shapes = [a.shape for a in definition.arguments]
        strides = [tuple(3 * s if i < len(shape) - 1 else s for i, s in enumerate(contiguous_strides(shape))) for shape in shapes]
        if not all(d.is_static(s) for lie in strides for s in lie):
            return "dims"
        return printed(map_loops(program_of(definition, strides))).text

    yield f"{name}: plain", lambda: c_loops.rendered(arranged(lower(definition)))
    yield f"{name}: rows apart", lambda: c_loops.rendered(arranged(lower(definition, True)))
    for asked in ((False,), (True,), (False, True), (False, False, False)):
        yield f"{name}: loops {asked}", lambda asked=asked: loops(*asked)                     # type: ignore[misc]
    for apart in (False, True):
        yield f"{name}: one pass {apart}", lambda apart=apart: one_pass(apart)                # type: ignore[misc]
    yield f"{name}: cuda", lambda: of_call(backend_cuda.call_of(definition))
    yield f"{name}: cuda strided", strided
    for template in cuda_tiles.TEMPLATES:
        yield f"{name}: cuda {template.name}", lambda t=template: of_call(cuda_tiles.call_of(t, definition))         # type: ignore[misc]
    yield f"{name}: cuda alone", lambda: printed(map_loops(program_of(definition, alone=True))).text


def scheduled(name: str, definition: Definition) -> Texts:
    for k, schedule in enumerate(test_schedule_actions.every_schedule(definition)):
        yield (f"{name}: schedule {k}", lambda schedule=schedule: schedule_actions.to_json(schedule) + "\n"     # type: ignore[misc]
               + c_loops.rendered(schedule_actions.replay(definition, schedule)))


def written(*outputs: Node) -> Definition:
    graph = tg.graph({f"y{i}": y for i, y in enumerate(outputs)})
    return part_between(list(graph.outputs.values()), [*graph.inputs.values(), *graph.parameters.values()]).written


def samples() -> Iterator[tuple[str, Definition]]:
    """The definitions of the tests."""
    for dtype in DTYPES:
        for op in CASES:
            instance = drawn(op, dtype, 0)
            if instance is not None:
                yield f"{op} {dtype}", instance[1]
    tables = (test_c_loops.REVIEWED, test_cuda_loops.TEXTS, test_online_reductions.CASES, test_tile_rows.CASES,
              test_skip_masked_blocks.CASES, test_tiles.TILED, test_scans.SCANS, test_schedule_actions.GRAPHS,
              {name: make(tg.f32) for name, make in test_pair_moments.CUT.items()},
              {name: make() for name, make in test_pair_moments.WHOLE.items()})
    for number, table in enumerate(tables):
        for name, outputs in table.items():
            first = outputs[0] if isinstance(outputs, tuple) else outputs
            nodes = (first,) if isinstance(first, Node) and not isinstance(outputs, tuple) else (
                tuple(outputs) if isinstance(first, Node) and isinstance(outputs[-1], Node) else (first,))
            yield f"{number} {name}", written(*nodes)
    for k, (kind, sizes, dtype) in enumerate((*test_skinny_product.CASES, *test_streams.PARTS)):
        yield f"stream {k}", part_between(*kind(*sizes, dtype)).written
    for seed in range(GRAPHS):
        try:
            yield f"graph {seed}", part_of(case_of(seed).graph).written
        except (LanguageError, Ungrown):
            continue


def loops_of_turns(node: Node) -> Texts:
    yield f"{node}: c", lambda: scan_c.text_of(Spec.of(node))
    yield f"{node}: cuda", lambda: of_call(scan_cuda.build(Spec.of(node)))


def scan_in(graph: Graph) -> Node:
    return next(n for n in graph.nodes if n.op.name == "scan")


def all_texts() -> Texts:
    for name, definition in samples():
        yield from of_definition(name, definition)
    for name, node in test_schedule_actions.GRAPHS.items():
        yield from scheduled(name, written(node))
    nodes = [test_scan_cuda.loop_of(make()) for make in test_scan_cuda.LOOPS] + [scan_in(rnn(reverse=r)) for r in (False, True)]
    for k, node in enumerate(nodes):
        yield from ((f"scan {k}: {name.rpartition(': ')[2]}", make) for name, make in loops_of_turns(node))
    for op in ("softmax", "layer_norm", "attention", "add"):
        instance = drawn(op, "f32", 0)
        assert instance is not None
        roots = list(instance[0].outputs.values())
        yield f"{op}: its op", lambda node=roots[0]: backend.text_of(Spec.of(node))           # type: ignore[misc]
    for sizes in (((4, 6), (1, 4)), ((3, 5, 7), (1, 3, 15)), ((64, 64), (64, 1))):
        shape, strides = sizes
        yield f"copy {sizes}", lambda shape=shape, strides=strides: of_call(         # type: ignore[misc]
            backend_cuda.build_copy(shape, contiguous_strides(shape), strides, 4))
    for seed in range(FUZZED):
        for form in FORMS:
            yield f"stages {seed} {form}", lambda seed=seed, form=form: formed(Case(seed, form))[1]           # type: ignore[misc]
            yield f"stages {seed} {form} cuda", lambda seed=seed, form=form: printed(map_loops(            # type: ignore[misc]
                formed(Case(seed, form))[0].program)).text


def text_of(make: Callable[[], str]) -> str:
    """A text of a program that is made for it: earlier versions named values by what else was rendered of a program."""
    for module in (spec_to_loops, backend, backend_cuda):
        for cached in vars(module).values():
            if hasattr(cached, "cache_clear"):
                cached.cache_clear()
    try:
        return make()
    except (NotLowered, LanguageError) as e:
        return f"refused: {e}"
    except Exception as e:                                          # what stages of the fuzzer a GPU has no form for
        return f"{type(e).__name__}: {e}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the digests here")
    parser.add_argument("--against", type=Path, help="compare with the digests that are here")
    parser.add_argument("--texts", type=Path, help="write the texts into this folder")
    given = parser.parse_args()
    before = json.loads(given.against.read_text()) if given.against else {}
    found: dict[str, str] = {}
    refused = 0
    for name, make in all_texts():
        text = text_of(make)
        refused += text.startswith("refused: ")
        found[name] = hashlib.sha256(text.encode()).hexdigest()[:16]
        if given.texts:
            given.texts.mkdir(parents=True, exist_ok=True)
            file = "".join(c if c.isalnum() else "_" for c in name)
            (given.texts / f"{file}.txt").write_text(text, encoding="utf-8")
    if given.out:
        given.out.write_text(json.dumps(found, indent=0), encoding="utf-8")
    other = [name for name in {**before, **found} if before.get(name) != found.get(name)] if given.against else []
    for name in other[:40]:
        print(f"differs: {name}")
    print(f"{len(found)} texts, {refused} of them refusals" + (f": {len(other)} differ" if given.against else ""))
    return 1 if other else 0


if __name__ == "__main__":
    sys.exit(main())
