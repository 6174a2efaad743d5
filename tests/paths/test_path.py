"""paths/path.py: every path is listed once, cheapest first, lazily; a path has a name that lasts and can be run again."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path as Folder
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.registry import all_kernels, by_op, kernel_named, matching
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language.anonymous_composite import part_of
from tensor_graphs.language.composite import CompositeOp
from tensor_graphs.language.dims import Expr
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, apply, walk
from tensor_graphs.paths.fit_terminal import SCREEN_LINES
from tensor_graphs.paths.path import EXPAND, Cost, NoPathError, Path, Paths
from tensor_graphs.paths.path_reader import path_from_json
from tensor_graphs.records.database import Database
from tests.plans import check, paths_of, plan_of, program_of

ROOT = Folder(__file__).parents[2]
N = tg.dim("n", 1, 16)


def small_graphs() -> dict[str, Graph]:
    x, y = tg.input("x", (N, 4)), tg.input("y", (N, 4))
    w = tg.parameter("w", (4, 4))
    return {
        "one atomic op": tg.graph(tg.sin(x)),
        "one composite": tg.graph(tg.sigmoid(x)),
        "the inner of one is the outer of another": tg.graph({"a": tg.silu(x), "b": tg.sigmoid(x), "c": tg.exp(y)}),
        "twice the same": tg.graph(tg.sub(tg.tanh(x), tg.tanh(y))),
        "a reduction": tg.graph(tg.softmax(x)),
        "views between": tg.graph(tg.mean(x.T[::-1], axis=1)),
        "a product": tg.graph(tg.linear(x, w)),
        "a norm": tg.graph(tg.rms_norm(x, tg.parameter("v", (4,)))),
        "a state": state_graph(x),
    }


def state_graph(x: Node) -> Graph:
    s = tg.state("s", (16, 4))
    return tg.graph({"a": tg.sum(x)}, {s: s.write(tg.neg(x), at=2)})


GRAPHS = small_graphs()
TABLE = by_op(all_kernels(("numpy", "torch")))


def random_prices(seed: int, refusals: float = 1.0) -> Any:
    """A price for every kernel and signature; a third of the composites' kernels and most of torch's may not be used."""
    def cost(kernel: Kernel, s: Signature) -> Cost | None:
        rng = np.random.default_rng([seed, zlib.crc32(f"{kernel.name} {s.key}".encode())])
        seconds = float(rng.choice([1.0, 2.0, 3.0, 5.0, 8.0, 13.0])) * (4.0 if s.spec.op.kind == "composite" else 1.0) * 1e-6
        often = 0.35 if s.spec.op.kind == "composite" else 0.6 if kernel.backend == "torch" else 0.0
        return None if rng.random() < often * refusals else Cost(seconds)

    return cost


# ---- brute force: written against the graph, the kernels and the prices alone ------------------------------------------


def questions(nodes: Iterable[Node]) -> list[tuple[Signature, int]]:
    """The signature of each node that some kernel has to compute; with 0 where that is done once, when the graph is bound."""
    return [(signature_of(n), int(not is_known_when_bound(n))) for n in nodes
            if n.op.kind in ("atomic", "composite") and not n.op.facts.view]


def is_known_when_bound(n: Node) -> bool:
    """Numbers and parameters, and what is made of nothing else."""
    if n.op.kind == "leaf":
        return n.op.name == "parameter" or (n.op.name == "constant" and not isinstance(n.attrs["value"], Expr))
    static = all(isinstance(s, int) for s in n.shape) and "Expr" not in str([type(v) for v in n.attrs.values()])
    return bool(n.inputs) and static and all(map(is_known_when_bound, n.inputs))


def every_path(g: Graph, cost: Any) -> dict[frozenset[tuple[str, str]], float]:
    """choices -> seconds, by trying everything."""
    ways: dict[str, list[tuple[str, float | None]]] = {}
    inside: dict[str, list[tuple[Signature, int]]] = {}

    def look(s: Signature) -> None:
        if s.key in ways:
            return
        ways[s.key] = [(k.name, p.seconds) for k in matching(s.spec, TABLE) if (p := cost(k, s)) is not None]
        if isinstance(s.spec.op, CompositeOp):
            inside[s.key] = questions(walk(s.spec.op.define(s.spec.inputs, s.spec.attrs).outputs))
            ways[s.key].append((EXPAND, None))
            for i, _ in inside[s.key]:
                look(i)

    def seconds(s: Signature, chosen: Mapping[str, str]) -> float:
        if chosen[s.key] == EXPAND:
            return sum(times * seconds(i, chosen) for i, times in inside[s.key])
        return next(p for name, p in ways[s.key] if name == chosen[s.key] and p is not None)

    costs: dict[frozenset[tuple[str, str]], float] = {}

    def extend(todo: list[Signature], chosen: dict[str, str]) -> None:
        todo = [s for s in todo if s.key not in chosen]
        if not todo:
            costs[frozenset(chosen.items())] = sum(times * seconds(s, chosen) for s, times in questions(g.nodes))
            return
        first, *rest = todo
        for name, _ in ways[first.key]:
            extend(rest + ([i for i, _ in inside[first.key]] if name == EXPAND else []), {**chosen, first.key: name})

    for s, _ in questions(g.nodes):
        look(s)
    extend([s for s, _ in questions(g.nodes)], {})
    return costs


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", GRAPHS)
def test_every_path_is_listed_once_cheapest_first(name: str, seed: int) -> None:
    g, cost = GRAPHS[name], random_prices(seed)
    expected = every_path(g, cost)
    listed = list(Paths(g, TABLE, cost))
    assert {frozenset(p.choices.items()): pytest.approx(p.cost, rel=1e-9) for p in listed} == expected
    assert len(listed) == len(expected) == len({p.id for p in listed})
    for a, b in itertools.pairwise(listed):
        assert a.small < b.small or (a.small == b.small and a.cost <= b.cost * (1 + 1e-9))


def test_there_is_something_to_list() -> None:
    """The comparison above compares more than nothing."""
    counts = {name: len(every_path(g, random_prices(1))) for name, g in GRAPHS.items()}
    assert sum(c > 4 for c in counts.values()) >= 5 and max(counts.values()) > 50, counts


def test_the_first_paths_of_a_model_come_at_once() -> None:
    """Enumeration is lazy: there are more paths than anybody can list."""
    from tensor_graphs.models.gemma3 import gemma3_graph
    from tests.paths.test_memory import GEMMA

    paths = Paths(gemma3_graph(GEMMA, max_positions=64), by_op(all_kernels(("numpy", "torch"))), random_prices(3, 0.0))
    first = list(itertools.islice(paths, 40))
    assert len({p.id for p in first}) == 40 and first[0].cost == paths.cheapest().cost
    assert all(a.cost <= b.cost * (1 + 1e-9) and not b.small for a, b in itertools.pairwise(first))


def test_a_swap_that_moves_less_than_a_hundredth_comes_last() -> None:
    """However cheap: of two kernels per op, only one pair differs by what counts."""
    x = tg.input("x", (4,))
    g = tg.graph(tg.exp2(x) * tg.sin(x))
    cost = {"exp2": (100.0, 200.0), "sin": (1.0, 1.5), "mul": (1.0, 1.0)}
    table = by_op(k for k in all_kernels(("numpy", "torch")) if k.op in cost)
    listed = list(Paths(g, table, lambda k, s: Cost(cost[k.op][k.backend == "torch"] * 1e-6)))
    swapped = [{name.removeprefix("torch.") for name in p.choices.values() if name.startswith("torch.")} for p in listed]
    assert [p.small for p in listed] == [0, 0, 1, 1, 1, 1, 2, 2] and swapped[:2] == [set(), {"exp2"}]
    assert all(p.small == len(s - {"exp2"}) for p, s in zip(listed, swapped, strict=True))
    assert listed[1].cost > listed[2].cost                           # what counts goes first, though it costs more
    assert [line.split()[0] for line in listed[1].lines(listed[0])[1:]] == ["torch.exp2"]


def test_each_way_of_what_takes_most_of_a_path_is_listed_by_its_price_however_little_it_moves() -> None:
    x = tg.input("x", (4,))
    cost = {"numpy.exp2": 100.0, "torch.exp2": 100.5, "numpy.sin": 1.0, "torch.sin": 4.0, "numpy.mul": 1.0}
    table = by_op(k for k in all_kernels(("numpy", "torch")) if k.name in cost)
    listed = list(Paths(tg.graph(tg.exp2(x) * tg.sin(x)), table, lambda k, s: Cost(cost[k.name] * 1e-6)))
    assert [p.cost for p in listed] == pytest.approx([102e-6, 102.5e-6, 105e-6, 105.5e-6]) and not any(p.small for p in listed)


def test_the_order_is_the_same_every_time() -> None:
    g = GRAPHS["the inner of one is the outer of another"]
    a, b = ([p.id for p in itertools.islice(Paths(g, TABLE, random_prices(5)), 50)] for _ in range(2))
    assert a == b


def test_the_cheapest_path_is_what_is_asked_for() -> None:
    for name, g in GRAPHS.items():
        expected = every_path(g, random_prices(7))
        assert Paths(g, TABLE, random_prices(7)).cheapest().cost == pytest.approx(min(expected.values())), name


def test_one_question_in_two_dims_is_one_choice() -> None:
    m = tg.dim("m", 1, 16)
    g = tg.graph({"a": tg.sigmoid(tg.input("x", (N, 4))), "b": tg.sigmoid(tg.input("y", (m, 4)))})
    cost = random_prices(2)
    listed = list(Paths(g, TABLE, cost))
    assert len(listed) == len({p.id for p in listed}) == len(list(Paths(GRAPHS["one composite"], TABLE, cost)))
    assert listed[0].cost == pytest.approx(2 * Paths(GRAPHS["one composite"], TABLE, cost).cheapest().cost)
    values = {"x": np.ones((3, 4), np.float32), "y": np.full((5, 4), 0.5, np.float32)}
    for p in listed[:4]:
        check(g, values, path=p, backends=("numpy", "torch"))


# ---- prices --------------------------------------------------------------------------------------------------------------


def test_a_path_is_measured_when_all_of_it_is_and_its_error_is_the_worst() -> None:
    x = tg.input("x", (3,))
    g = tg.graph(tg.sin(x) + tg.exp2(x))
    rows = {"sin": Cost(1e-6, True, 1e-7), "exp2": Cost(2e-6, True, 3e-7), "add": Cost(4e-6, True, 0.0)}
    for estimated in (None, "exp2"):
        costs = rows | ({estimated: Cost(2e-6, False, None)} if estimated else {})
        path = Paths(g, by_op(all_kernels(("numpy",))), lambda k, s, costs=costs: costs[k.op]).cheapest()
        assert path.cost == pytest.approx(7e-6) and path.measured is (estimated is None)
        assert path.error == (None if estimated else 3e-7)
        assert {(s["op"].split()[0], s["kernel"], s["calls"]) for s in path.steps()} == {
            ("sin", "numpy.sin", 1), ("exp2", "numpy.exp2", 1), ("add", "numpy.add", 1)}


def test_an_op_that_occurs_inside_counts_as_often_as_it_runs() -> None:
    x = tg.input("x", (N, 4))
    g = tg.graph(tg.silu(x) + tg.silu(tg.silu(tg.sin(x))))
    paths = paths_of(g, ("numpy",), atomics=True)
    path = paths.cheapest()
    silu = signature_of(tg.silu(x))
    assert path.calls[silu.key] == 3
    inner = [s for s, _ in paths.inner(silu)]
    assert all(path.calls[s.key] % 3 == 0 for s in inner if s.key not in {t.key for t, _ in paths.top})


def test_definitions_that_hold_the_same_ones_are_opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each level holds both definitions of the level before: 2^30 ways lead down."""
    def level(one: Any, other: Any) -> tuple[Any, Any]:
        @tg.composite
        def both(x: Node) -> Node:
            return one(x) + other(x)

        @tg.composite
        def between(x: Node) -> Node:
            return one(x) - other(x)

        return both, between

    pair: tuple[Any, Any] = tg.sin, tg.exp2
    for _ in range(30):
        pair = level(*pair)
    opened, inner = [0], Paths.inner

    def counted(paths: Paths, *arguments: Any) -> list[tuple[Signature, int]]:
        opened[0] += 1
        assert opened[0] < 10_000
        return inner(paths, *arguments)

    monkeypatch.setattr(Paths, "inner", counted)
    x = tg.input("x", (N, 4))
    path = Paths(tg.graph(pair[0](x)), TABLE, lambda k, s: Cost(1.0)).cheapest()
    assert path.calls[signature_of(tg.sin(x)).key] == path.calls[signature_of(tg.exp2(x)).key] == 2**29
    assert path.calls[signature_of(x + x).key] == 2**29 and path.cost == 2**30 + 2**30 - 1


# ---- what parameters alone decide -------------------------------------------------------------------------------------------


@tg.composite
def from_codes(p: Node, s: Node) -> Node:
    return (tg.cast(p, tg.f32) - 8.0) * s


@tg.composite
def by_codes(x: Node, p: Node, s: Node) -> Node:
    return tg.linear(x, from_codes(p, s))


@tg.composite
def around_codes(x: Node, p: Node, s: Node) -> Node:
    return tg.tanh(by_codes(x, p, s)) + by_codes(x, p, tg.sqrt(s))


def weights(kind: str) -> tuple[Node, Node]:
    leaf = tg.parameter if kind == "parameter" else tg.input
    return leaf("p", (4, 4), tg.u8), leaf("s", (4, 1), tg.f32)


def codes_graphs() -> dict[str, Graph]:
    x, y, (p, s) = tg.input("x", (N, 4)), tg.input("y", (N, 4)), weights("parameter")
    q, t = tg.input("q", (4, 4), tg.u8), tg.input("t", (4, 1))
    part = part_of(tg.graph(tg.tanh(by_codes(x, tg.input("a", (4, 4), tg.u8), tg.input("b", (4, 1))))))
    return {
        "a composite": tg.graph(by_codes(x, p, s)),
        "one in another": tg.graph(around_codes(x, p, s)),
        "a part": tg.graph(apply(part, [x, p, s], part.attrs)),
        "a number": tg.graph(by_codes(x, tg.constant(np.full((4, 4), 3, np.uint8)), s)),
        "one operand": tg.graph(by_codes(x, p, t)),
        "no operand": tg.graph(by_codes(x, q, t)),
        "here, and not there": tg.graph({"a": by_codes(x, p, s), "b": by_codes(y, q, t), "c": by_codes(y, p, t)}),
        "here, and not there, in another": tg.graph(around_codes(x, p, s) + around_codes(y, q, t)),
        "nothing else": tg.graph(x + from_codes(p, s).sum()),
    }


@pytest.mark.parametrize("name", codes_graphs())
def test_a_path_costs_what_runs_and_nothing_of_what_is_computed_when_it_is_bound(name: str) -> None:
    """One second for each kernel; what runs is counted in the lowered program."""
    g = codes_graphs()[name]
    paths = Paths(g, by_op(all_kernels(("numpy",))), lambda k, s: None if s.spec.op.name == "linear" else Cost(1.0))
    path = paths.cheapest()
    program = program_of(g, ("numpy",), path=path)
    assert path.cost == path.kernel_calls == sum(1 for i in program.instructions if i.signature)
    for other in itertools.islice(paths, 5):
        assert other.cost == sum(1 for i in program_of(g, ("numpy",), path=other).instructions if i.signature)


def test_a_kernel_does_not_win_by_the_price_of_what_the_definition_computes_once() -> None:
    """The kernel takes 305 µs; the definition 37 µs of a product and 300 µs of decoding, once where the codes are parameters."""
    kernel = replace(kernel_named("numpy.linear"), name="numpy.by_codes", op="by_codes", accepts=lambda spec: None,
                     composite=by_codes(tg.input("x", (N, 4)), *weights("input")).op)
    costs = {"linear": 37e-6, "by_codes": 305e-6}
    table = by_op([*(k for k in all_kernels(("numpy",)) if k.op in ("linear", "cast", "sub", "mul")), kernel])
    chosen = {}
    for kind in ("parameter", "input"):
        node = by_codes(tg.input("x", (N, 4)), *weights(kind))
        path = Paths(tg.graph(node), table, lambda k, s: Cost(costs.get(k.op, 100e-6))).cheapest()
        chosen[kind] = path.choices[signature_of(node).key], path.cost
    assert chosen == {"parameter": (EXPAND, pytest.approx(37e-6)), "input": ("numpy.by_codes", pytest.approx(305e-6))}


@pytest.mark.parametrize(("us", "chosen"), [(109.0, "numpy.by_codes"), (112.0, EXPAND)])
def test_a_definition_that_makes_much_of_parameters_has_to_gain_a_tenth_and_no_run_takes_that(us: float, chosen: str) -> None:
    node = by_codes(tg.input("x", (N, 1024)), tg.parameter("p", (1024, 1024), tg.u8), tg.parameter("s", (1024, 1)))
    kernel = replace(kernel_named("numpy.linear"), name="numpy.by_codes", op="by_codes", accepts=lambda spec: None,
                     composite=node.op)
    table = by_op([*(k for k in all_kernels(("numpy",)) if k.op in ("linear", "cast", "sub", "mul")), kernel])
    path = Paths(tg.graph(node), table, lambda k, s: Cost((us if k is kernel else 100.0) * 1e-6)).cheapest()
    assert path.choices[signature_of(node).key] == chosen
    taken = us if chosen != EXPAND else 100.0
    assert path.seconds == pytest.approx(taken * 1e-6) and (path.cost > path.seconds) == (chosen == EXPAND)


def test_a_definition_does_not_pay_for_what_is_copied_in_it_once() -> None:
    @tg.composite
    def doubled_sum(x: Node, w: Node) -> Node:
        return x + tg.reshape(tg.expand(tg.reshape(w, (4, 1)), (4, 2)), (8,))

    for leaf, seconds in ((tg.input, 8.0), (tg.parameter, 0.0)):
        node = doubled_sum(tg.input("x", (8,)), leaf("w", (4,)))
        paths = Paths(tg.graph(node), TABLE, lambda k, s: Cost(5.0), copied=lambda t: float(np.prod(t.shape)))
        (way,) = [a for a in paths.alternatives(signature_of(node)) if a.name == EXPAND]
        assert way.seconds == seconds


# ---- nothing computes it -------------------------------------------------------------------------------------------------


def test_what_nothing_computes_is_named_with_where_it_hides() -> None:
    g = GRAPHS["a reduction"]
    paths = Paths(g, TABLE, lambda k, s: None if s.spec.op.name in ("softmax", "reduce_max") else Cost(1e-6))
    assert list(paths) == []
    with pytest.raises(NoPathError) as caught:
        paths.cheapest()
    assert str(caught.value) == "no kernel that may be used computes softmax → reduce_max f32[n, 4]"


def test_a_definition_pays_for_what_is_copied_in_it() -> None:
    """An upsampled image is a reshape of what is repeated, which no view is."""
    x = tg.input("x", (2, 3, 4, 5))
    for node, seconds in ((tg.upsample(x, (2, 2)), 2 * 3 * 8 * 10.0), (tg.softmax(x), 0.0)):
        paths = Paths(tg.graph(node), TABLE, lambda k, s: Cost(5.0), copied=lambda t: float(np.prod(t.shape)))
        (way,) = [a for a in paths.alternatives(signature_of(node)) if a.name == EXPAND]
        assert way.seconds == seconds


def test_a_composite_that_is_read_by_one_that_holds_it_has_its_own_price() -> None:
    @tg.composite
    def turned_over(x: Node) -> Node:
        return tg.permute(x, (1, 0))

    @tg.composite
    def turned_and_more(x: Node) -> Node:
        return turned_over(x) + 1

    g = tg.graph(turned_and_more(turned_over(tg.input("x", (8, 8), tg.i32))))
    assert Paths(g, TABLE, lambda k, s: Cost(1.0), copied=lambda t: 1.0).cheapest().cost == 1.0


def test_an_opaque_composite_is_never_expanded() -> None:
    @tg.composite(opaque=True)
    def secret(x: Node) -> Node:
        return tg.sin(x)

    g = tg.graph(secret(tg.input("x", (3,))))
    with pytest.raises(NoPathError, match=r"^no kernel that may be used computes secret f32\[3\]$"):
        paths_of(g, ("numpy",)).cheapest()


# ---- names, files, replay ------------------------------------------------------------------------------------------------


def test_a_path_goes_to_json_and_back() -> None:
    for path in itertools.islice(Paths(GRAPHS["a norm"], TABLE, random_prices(1)), 5):
        text = json.dumps(path.to_json())
        back = path_from_json(json.loads(text))
        assert back.id == path.id and back.choices == path.choices and back.graph_key == path.graph_key
        assert Paths(GRAPHS["a norm"], TABLE, random_prices(1)).costed(back) == path


def test_a_saved_path_that_was_changed_is_refused() -> None:
    data = paths_of(GRAPHS["a norm"], ("numpy",)).cheapest().to_json()
    key = next(iter(data["choices"]))
    with pytest.raises(NoPathError, match=rf"^the saved path says it is {data['id']}, its choices make it [0-9a-f]{{16}}: it was "):
        path_from_json({**data, "choices": {**data["choices"], key: "numpy.other"}})
    for broken in ({}, {"id": "x", "graph": "y"}, {**data, "choices": ["a"]}, {k: v for k, v in data.items() if k != "identities"}):
        with pytest.raises(NoPathError, match=r"^(the saved path|.* of the saved path) (has no|is) .*\n  fix: save it again"):
            path_from_json(broken)
    with pytest.raises(NoPathError, match=r"does not say which numpy\.\w+ it means\n  fix: "):
        path_from_json(Path(data["graph"], data["choices"], 0.0, False, None).to_json())


def test_a_saved_path_whose_kernel_is_edited_since_is_refused() -> None:
    g = GRAPHS["a reduction"]
    path = path_from_json(paths_of(g, ("numpy",)).cheapest().to_json())

    def cost(kernel: Kernel, s: Signature) -> Cost:
        return Cost(1e-6)

    edited = [replace(k, toolchain="edited") for k in all_kernels(("numpy",))]
    with pytest.raises(NoPathError, match=rf"^the path {path.id} means another numpy\.softmax for .*: [0-9a-f]{{12}}, .*\n  fix: "):
        Paths(g, by_op(edited), cost).kernels(path)
    assert Paths(g, TABLE, cost).kernels(path)
    other = Paths(g, by_op(edited), cost).cheapest()
    assert other.choices == path.choices and other.id != path.id


def test_a_path_of_another_graph_or_of_missing_kernels_is_refused() -> None:
    path = paths_of(GRAPHS["a norm"], ("torch",)).cheapest()
    with pytest.raises(NoPathError, match=rf"^the path {path.id} is of another graph: "):
        paths_of(GRAPHS["a product"], ("torch",)).kernels(path)
    with pytest.raises(NoPathError, match=r"^the path \w+ chooses 'torch\.rms_norm' for rms_norm f32.*, which is not "):
        paths_of(GRAPHS["a norm"], ("numpy",)).kernels(path)


@pytest.mark.processes
def test_an_id_is_the_same_in_every_process() -> None:
    code = ("import tensor_graphs as tg\nfrom tests.plans import paths_of\n"
            "x = tg.input('other_name', (tg.dim('rows', 1, 16), 4))\n"
            "print(paths_of(tg.graph(tg.softmax(x)), ('numpy',)).cheapest().id)")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120, cwd=ROOT)
    assert out.stdout.strip() == paths_of(GRAPHS["a reduction"], ("numpy",)).cheapest().id


def kernels_of(g: Graph, path: Path, backends: Sequence[str]) -> str:
    """The kernels that a plan of this path runs."""
    return " ".join(i.kernel for i in plan_of(g, backends, path=path).variants[0].program.instructions)


@pytest.mark.parametrize("name", GRAPHS)
def test_every_listed_path_runs_and_gives_the_oracles_values(name: str) -> None:
    g = GRAPHS[name]
    values = {n: np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32) for n in g.inputs}
    weights = {n: np.random.default_rng(2).standard_normal(w.shape).astype(np.float32) for n, w in g.parameters.items()}
    ran: set[str] = set()
    for path in itertools.islice(Paths(g, TABLE, random_prices(11)), 12):
        check(g, values, weights, path=path, backends=("numpy", "torch"))
        ran.add(kernels_of(g, path, ("numpy", "torch")))
    assert len(ran) >= min(2, len(every_path(g, random_prices(11))))


@pytest.mark.processes
def test_a_saved_path_is_what_compile_runs(store: Database) -> None:
    g = tg.graph(tg.neg(tg.input("x", (3, 4))))
    chosen = next(p for p in paths_of(g, ("numpy",)) if EXPAND in p.choices.values())
    plan = compile_graph(g, backends=("numpy",), database=store, path=path_from_json(json.loads(json.dumps(chosen.to_json()))))
    assert plan.variants[0].path.choices == chosen.choices and plan.variants[0].path.id == chosen.id
    assert math.isfinite(plan.variants[0].path.cost) and plan.variants[0].path.cost > 0
    assert [i.kernel for i in plan.variants[0].program.instructions] == [
        i.kernel for i in plan_of(g, path=chosen).variants[0].program.instructions]


def test_a_path_is_printed_as_its_price_and_steps_on_one_screen() -> None:
    x = tg.input("x", (N, 4))
    path = paths_of(tg.graph(tg.silu(tg.sin(x))), ("numpy",)).cheapest()
    first, *steps = str(path).splitlines()
    assert first.split() == [path.id, f"{path.seconds * 1e6:.1f}", "µs", "estimate", "error", "unknown"]
    assert {tuple(s.split()[:4]) for s in steps} == {
        (name, "×", "1", path.titles[key].split()[0]) for key, name in path.choices.items() if name != EXPAND}
    assert repr(path) == f"<path {path.id}: {len(path.choices)} choices, {path.seconds * 1e6:.1f} µs, estimate>"
    saved = path_from_json(path.to_json())
    assert str(saved).startswith(f"{path.id}  saved, without a cost\n") and "no cost" in repr(saved)
    many = replace(path, choices={f"k{i}": f"numpy.k{i}" for i in range(90)})
    assert len(str(many).splitlines()) == SCREEN_LINES and str(many).endswith("… 52 more steps")
