"""Copies between devices: a path pays for those that lowering inserts, and they decide between kernels of two devices."""

from __future__ import annotations

import itertools
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path as FilePath

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.choice.path_listing import signatures_of
from tensor_graphs.kernels.kernel import Kernel, Transfer
from tensor_graphs.kernels.registry import all_kernels, by_op, matching
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language import leaves
from tensor_graphs.language.anonymous_composite import PartOp, PartRecipe, name_of
from tensor_graphs.language.composite import CompositeOp, definition_digest
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, TensorType, apply, walk
from tensor_graphs.paths.path import EXPAND, Cost, Path, Paths
from tensor_graphs.paths.path_count import PathCount, count_paths
from tests.fake.device import Fake
from tests.plans import program_of, random_path
from tests.runtime.test_two_devices import models

BACKENDS = ("numpy", "fake")
X, Y = tg.input("x", (16, 16)), tg.input("y", (16, 16))


@pytest.fixture(autouse=True)
def fake() -> Iterator[Fake]:
    from tests.fake import backend

    yield backend.make_known()
    backend.forget()


def placed_paths(g: Graph, link: float, costs: Mapping[str, tuple[float, float]] | None = None, *, expand: bool = True) -> Paths:
    """prices: op -> microseconds (on the cpu, on the fake device); other ops cost 1 and 1. link: microseconds of a copy."""
    cost_by_kernel = costs or {}

    def cost(kernel: Kernel, signature: Signature) -> Cost:
        here, there = cost_by_kernel.get(signature.spec.op.name, (1.0, 1.0))
        return Cost((there if kernel.backend == "fake" else here) * 1e-6)

    def linked(source: str, target: str, t: TensorType) -> float:
        return link * 1e-6

    return Paths(g, by_op(all_kernels(BACKENDS)), cost, expand=expand, link=linked)


def copies(g: Graph, path: Path) -> Counter[str]:
    """Return the copies that lowering inserts, counted by devices."""
    return Counter(i.kernel for i in program_of(g, BACKENDS, path=path).instructions if isinstance(i.call, Transfer))


def backends(path: Path) -> dict[str, str]:
    """op -> the backend that computes it."""
    return {s["op"].split("(")[0].split(" ")[0].split("[")[0]: s["kernel"].split(".")[0] for s in path.steps()}


@pytest.mark.parametrize("family", ["gemma", "bert", "llama"])
def test_the_copies_that_are_priced_are_those_that_lowering_inserts(family: str, tmp_path: FilePath) -> None:
    g = models(tmp_path)[family]
    paths = placed_paths(g, 7.0)
    for seed in range(4):
        path = paths.costed(random_path(paths, np.random.default_rng(seed)))
        costed = {way: n for way, (n, _) in path.copies.items()}
        assert costed == copies(g, path) and sum(costed.values()) > 3
        assert sum(seconds for _, seconds in path.copies.values()) == pytest.approx(7e-6 * sum(costed.values()))
        one = {k: name.replace("fake.", "numpy.") for k, name in path.choices.items()}
        alone = paths.costed(replace(path, choices=one, identities={}))
        assert not alone.copies and path.cost - alone.cost == pytest.approx(7e-6 * sum(costed.values()))


def test_a_slow_link_turns_the_choice_and_a_fast_one_turns_it_back() -> None:
    g = tg.graph(tg.sqrt(tg.sin(tg.exp2(X))))
    costs = {"exp2": (1.0, 10.0), "sin": (100.0, 5.0), "sqrt": (1.0, 10.0)}
    for link, wanted in ((1.0, "fake"), (40.0, "fake"), (60.0, "numpy"), (1000.0, "numpy"), (2.0, "fake")):
        path = placed_paths(g, link, costs).cheapest()
        assert backends(path)["sin"] == wanted and backends(path)["exp2"] == "numpy"
        assert path.copies.keys() == ({"cpu -> fake", "fake -> cpu"} if wanted == "fake" else set())


def test_a_run_of_ops_moves_together_where_each_alone_would_not_pay() -> None:
    g = tg.graph(tg.sqrt(tg.reciprocal(tg.sin(tg.exp2(tg.floor(X))))))
    costs = dict.fromkeys(("sqrt", "reciprocal", "sin", "exp2", "floor"), (10.0, 1.0))
    assert set(backends(placed_paths(g, 15.0, costs).cheapest()).values()) == {"fake"}        # each alone: 1 + 2 · 15 > 10
    assert set(backends(placed_paths(g, 30.0, costs).cheapest()).values()) == {"numpy"}


GRAPHS = {
    "chain": tg.graph(tg.sqrt(tg.reciprocal(tg.sin(tg.exp2(X))))),
    "diamond": tg.graph((tg.sin(X) + tg.exp2(X)) * tg.sqrt(Y)),
    "shared": tg.graph({"a": tg.sin(tg.floor(X)), "b": tg.exp2(tg.floor(X)), "c": tg.sqrt(tg.floor(X))[:, 3:7]}),
    "composite": tg.graph(tg.softmax(tg.sin(X)) + Y),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_enumeration_is_complete_and_the_first_path_is_the_cheapest(name: str) -> None:
    """Against every combination of choices, priced one by one."""
    g, rng = GRAPHS[name], np.random.default_rng(len(name))
    expand = name != "composite"
    for _ in range(12):
        names = {s.spec.op.name for s, _ in placed_paths(g, 0.0, expand=expand).top}
        costs = {op: (float(rng.uniform(1, 20)), float(rng.uniform(1, 20))) for op in sorted(names)}
        paths = placed_paths(g, float(rng.choice([0.5, 3.0, 8.0, 30.0])), costs, expand=expand)
        everything = list(paths)
        assert len({p.id for p in everything}) == len(everything) == 2 ** len(paths.top)
        least = min(p.cost for p in everything)
        assert everything[0].cost == pytest.approx(least) == paths.cheapest().cost
        for path in everything[::5]:
            assert {way: n for way, (n, _) in path.copies.items()} == copies(g, path)


def test_what_is_all_on_one_device_comes_next_however_many_mixtures_are_cheaper() -> None:
    """Steps that take less on the cpu than a launch: each mixture of both devices is cheaper than all on the other."""
    g = tg.graph(tg.copy_to(tg.softmax(tg.copy_to(X, "fake")), "fake"))
    costs = {s.spec.op.name: (1.0, 9.0) for s in signatures_of(g)} | {"softmax": (20.0, 30.0)}
    listed = list(itertools.islice(placed_paths(g, 0.1, costs), 6))
    assert listed[0].cost == min(p.cost for p in listed)
    kinds = [(len(set(backends(p).values()) - {EXPAND}), set(backends(p).values()) - {EXPAND}, p.kernel_calls > 1) for p in listed]
    for device in ("numpy", "fake"):
        assert (1, {device}, True) in kinds[:5], "the steps of its definition"
    assert (1, {"fake"}, False) in kinds[:5], "one kernel for all of it"


# ---- recipes on two devices, against a brute force -------------------------------------------------------------------

WORDS: list[list[Callable[[Node, Node], Node]]] = [
    [lambda a, b: (a + b) * a, lambda a, b: a * a + b * a],
    [lambda a, b: tg.exp2(a) * tg.exp2(b), lambda a, b: tg.exp2(a + b), lambda a, b: tg.exp2(b + a) * 1.0],
    [lambda a, b: tg.square(a) + b, lambda a, b: a * a + b],
    [lambda a, b: tg.relu(a * b), lambda a, b: tg.maximum(a * b, b * 0.0)],
]
"""ways to say a function of two operands: the first is the part's own, the others are its recipes"""


def part(rng: random.Random) -> PartOp:
    """A random part with recipes; it may hold another one."""
    arguments = [leaves.argument(i, X.type) for i in range(2)]
    words = rng.choice(WORDS)

    def over(say: Callable[[Node, Node], Node], inner: PartOp | None) -> PartOp:
        operands = arguments if inner is None else [apply(inner, arguments, {}), arguments[1]]
        outputs = [say(*operands)]
        return PartOp(name_of(outputs, definition_digest(outputs)), arguments, outputs)

    inner = part(rng) if rng.random() < 0.25 else None
    recipes = [PartRecipe(over(say, inner), (f"rule/{i}",), "", "reassociating") for i, say in enumerate(words[1:])]
    own = over(words[0], inner)
    return PartOp(own.name, arguments, own.written.outputs, recipes=recipes, alone=inner is None)


def graph_of_parts(rng: random.Random) -> Graph:
    values: list[Node] = [X, Y]
    for _ in range(rng.randint(1, 3)):
        if rng.random() < 0.6:
            values.append(apply(part(rng), [rng.choice(values), rng.choice(values)], {}))
        else:
            values.append(rng.choice([tg.sin, tg.sqrt, tg.silu])(rng.choice(values)))
    return tg.graph({f"y{i}": v for i, v in enumerate(values[2:]) if i == len(values) - 3 or rng.random() < 0.3})


def brute_force(g: Graph, usable: Callable[[Kernel, Signature], bool]) -> set[frozenset[tuple[str, str]]]:
    """The choices of every path, by trying everything: written against the graph and the kernels alone."""
    table = by_op(all_kernels(BACKENDS))

    def asked(nodes: Iterable[Node]) -> list[Signature]:
        return [signature_of(n) for n in nodes if n.op.kind in ("atomic", "composite") and not n.op.facts.view]

    def ways(s: Signature) -> list[tuple[str, list[Signature]]]:
        alternatives: list[tuple[str, list[Signature]]] = [(k.name, []) for k in matching(s.spec, table) if usable(k, s)]
        if isinstance(s.spec.op, CompositeOp):
            words = [(EXPAND, s.spec.op), *((r.name, r.op) for r in s.spec.op.recipes)] if isinstance(s.spec.op, PartOp) else [
                (EXPAND, s.spec.op)]
            alternatives += [(name, asked(walk(op.define(s.spec.inputs, s.spec.attrs).outputs))) for name, op in words]
        return alternatives

    every: set[frozenset[tuple[str, str]]] = set()

    def extend(todo: list[Signature], chosen: dict[str, str]) -> None:
        todo = [s for s in todo if s.key not in chosen]
        if not todo:
            every.add(frozenset(chosen.items()))
            return
        for name, inside in ways(todo[0]):
            extend(todo[1:] + inside, {**chosen, todo[0].key: name})

    extend(asked(g.nodes), {})
    return every


def paths_listed(g: Graph, usable: Callable[[Kernel, Signature], bool], rng: random.Random) -> list[Path]:
    link = rng.choice([0.3e-6, 2e-6, 9e-6])

    def cost(kernel: Kernel, s: Signature) -> Cost | None:
        return Cost((1 + zlib.crc32(f"{kernel.name} {s.key}".encode()) % 13) * 1e-6) if usable(kernel, s) else None

    paths = Paths(g, by_op(all_kernels(BACKENDS)), cost, link=lambda source, target, t: link)
    listed = list(paths)
    assert count_paths(paths) == PathCount(len(listed))
    return listed


def copied_back(g: Graph, path: Path) -> bool:
    """Return whether lowering copies to a device what it copied from another one."""
    moved = [i for i in program_of(g, BACKENDS, path=path).instructions if isinstance(i.call, Transfer)]
    arrived = {o.buffer for i in moved for o in i.outs}
    return any(x.buffer in arrived for i in moved for x in i.ins)


def compared_with_brute_force(seed: int, most: int) -> int:
    """Return the number of paths of one random graph, at most `most`, all of which are listed, each once."""
    rng = random.Random(seed)
    g, refused = graph_of_parts(rng), rng.random() < 0.5
    while len(brute_force(g, lambda kernel, s: True)) > most:
        g = graph_of_parts(rng)

    def usable(kernel: Kernel, s: Signature) -> bool:
        return not (refused and zlib.crc32(f"{seed} {kernel.name} {s.key}".encode()) % 3 == 0)

    wanted = brute_force(g, usable)
    listed = paths_listed(g, usable, rng)
    assert {frozenset(p.choices.items()) for p in listed} == wanted and len(listed) == len(wanted), seed
    assert not any(copied_back(g, path) for path in listed[::max(1, len(listed) // 3)]), seed
    return len(listed)


def test_paths_with_recipes_on_two_devices_are_those_of_a_brute_force() -> None:
    counts = [compared_with_brute_force(seed, 100) for seed in range(16)]
    assert sum(counts) > 200 and len(set(counts)) > 4, "else this compares nothing"


@pytest.mark.long
def test_paths_of_two_hundred_graphs_with_recipes_are_those_of_a_brute_force() -> None:
    assert sum(compared_with_brute_force(seed, 400) for seed in range(200)) > 5000


def test_what_is_read_in_pieces_is_copied_whole_and_a_single_piece_as_it_is() -> None:
    def copied(*pieces: tuple[int, int]) -> list[str]:
        g = tg.graph([tg.sin(X[a:b]) for a, b in pieces])
        paths = placed_paths(g, 1.0, {"sin": (50.0, 1.0)})
        path = paths.cheapest()
        crossings = [str(node.type) for node, source, _ in paths.crossings(
            {s: a for s in paths.known() for a in paths.alternatives(s) if a.name == path.choices.get(s.key)}) if source == "cpu"]
        copies_made = [i.outs[0] for i in program_of(g, BACKENDS, path=path).instructions if i.kernel == "cpu -> fake"]
        assert [str(TensorType(out.shape, out.dtype)) for out in copies_made] == crossings
        return crossings

    assert copied((0, 4), (4, 8), (8, 16)) == ["f32[16, 16]"] and copied((0, 9), (5, 16)) == ["f32[16, 16]"]
    assert copied((2, 6)) == ["f32[4, 16]"] and copied((0, 4), (8, 12)) == ["f32[4, 16]"] * 2
    n = tg.dim("n", 1, 64)
    x = tg.input("x", (3, n))
    g = tg.graph([tg.sin(x[i]) for i in range(3)])
    assert copies(g, placed_paths(g, 1.0, {"sin": (50.0, 1.0)}).cheapest())["cpu -> fake"] == 1


def test_a_piece_that_is_copied_by_name_is_all_that_is() -> None:
    g = tg.graph(tg.sin(tg.copy_to(X[:8], "fake")) * tg.exp2(X[8:]))
    assert [i.outs[0].shape for i in program_of(g, BACKENDS).instructions if i.kernel == "cpu -> fake"] == [(8, 16)]


def test_a_path_shows_its_copies() -> None:
    path = placed_paths(tg.graph(tg.sin(X)), 2.0, {"sin": (50.0, 1.0)}).cheapest()
    assert path.lines()[-2:] == [f"      {way}          × 1   copies, 2.0 µs" for way in ("cpu -> fake", "fake -> cpu")]
    assert path.cost == pytest.approx(5e-6)


def test_one_device_prices_no_copy_and_expands_nothing_for_it() -> None:
    paths = Paths(GRAPHS["chain"], by_op(all_kernels(("numpy",))), lambda k, s: Cost(1e-6))
    assert paths.devices == ("cpu",) and not paths.cheapest().copies and not paths._placements
