"""facts: what is true of an op stands in its row. Nothing else in the package keeps a list of ops."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.language import atomic, leaves
from tensor_graphs.language.atomic import ATOMIC, AtomicOp
from tensor_graphs.language.composite import LIBRARY
from tensor_graphs.language.op_facts import UNKNOWN

PACKAGE = Path(tg.__file__).parent
OPS = {*ATOMIC, *LIBRARY, leaves.ITEM.name, leaves.COPY_TO.name}

MAY_LIST = {
    "kernels": "a backend's table: op -> kernel",
    "codegen": "what is written for each of the 27 ops, as a backend's table",
    "proof": "what is known of a value is carried through each of the 27 ops by a rule of its own, as an algebra carries numbers",
    "measure/conformance/cases.py": "an instance of each op",
    "frontends/onnx": "names of ONNX",
    "frontends/torch": "names of ATen",
}
"""where ops are listed, and why that is no fact about them"""


def lists(text: str) -> Iterator[tuple[int, list[str]]]:
    """Where a source has a set, tuple, list, dict or alternative of two names of ops or more, and of nothing else."""
    for at in ast.walk(ast.parse(text)):
        if isinstance(at, (ast.Set, ast.Tuple, ast.List)):
            parts: list[ast.expr | None] = list(at.elts)
        elif isinstance(at, ast.Dict):
            parts = list(at.keys)
        elif isinstance(at, ast.MatchOr):
            parts = [p.value if isinstance(p, ast.MatchValue) else None for p in at.patterns]
        else:
            continue
        names = [p.value if isinstance(p, ast.Constant) else None for p in parts]
        if len(names) > 1 and all(isinstance(n, str) and n in OPS for n in names):
            yield at.lineno, [str(n) for n in names]


def test_no_room_but_the_language_lists_ops():
    found = [f"{path.relative_to(PACKAGE)}:{line}: {', '.join(names)}" for path in sorted(PACKAGE.rglob("*.py"))
             if path.relative_to(PACKAGE).parts[0] != "language"
             and not any(path.relative_to(PACKAGE).is_relative_to(allowed) for allowed in MAY_LIST)
             for line, names in lists(path.read_text(encoding="utf-8"))]
    assert not found, "a fact about ops is a column of their rows (language/op_facts.py):\n" + "\n".join(found)


@pytest.mark.parametrize("text", ['VIEWS = {"reshape", "permute"}', 'x.op.name in ("sum", "reduce_max")',
                                  '{"add": "+", "mul": "*"}', 'match x:\n    case "sum" | "softmax": pass'])
def test_a_list_of_ops_is_seen(text: str):
    assert len(list(lists(text))) == 1


@pytest.mark.parametrize("op", ATOMIC.values(), ids=lambda op: op.name)
def test_no_atomic_op_is_without_facts(op: AtomicOp):
    assert op.facts != UNKNOWN
    assert not (op.facts.view and op.facts.rounds) and not (op.facts.exact and op.facts.rounds)
    assert op.facts.view >= op.facts.rearranges


@pytest.mark.parametrize("name", [n for n, op in ATOMIC.items() if op.facts.view])
def test_a_view_reads_the_memory_of_its_operand(name: str):
    x = tg.input("x", (1, 4), tg.f32)
    made = {"reshape": lambda: atomic.reshape(x, 4), "permute": lambda: atomic.permute(x, (1, 0)),
            "expand": lambda: atomic.expand(x, (3, 4)), "slice": lambda: x[:, 1:3]}[name]()
    value = np.arange(4, dtype=np.float32)[None]
    seen = tg.interpret(tg.graph(made), {"x": value}).outputs["out"]
    assert made.op.name == name and set(np.ravel(seen)) <= set(np.ravel(value))
    assert (set(np.ravel(seen)) == set(np.ravel(value))) == ATOMIC[name].facts.rearranges


def test_an_op_of_a_user_has_no_facts_even_under_a_known_name():
    @tg.composite(name="reshape")
    def other(x):
        return x * 2.0

    node = other(tg.input("x", (3,), tg.f32))
    assert node.op.name == "reshape" and node.op.facts == UNKNOWN
