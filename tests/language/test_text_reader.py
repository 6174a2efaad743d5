"""Reading `.tg` texts that people wrote: every operator, index and literal as in Python, every mistake told at its place."""

from __future__ import annotations

import inspect
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensor_graphs as tg
from tensor_graphs.language import atomic, leaves
from tensor_graphs.language.composites import arithmetic
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.text import TextError, parse_graph, print_graph
from tensor_graphs.language.text_reader import MAX_NESTING
from tensor_graphs.language.text_writer import KEYWORDS
from tests.language.wrong_texts import HEAD, WRONG

ROOT = Path(__file__).parents[2]
EXAMPLES = {f.stem: f.read_text(encoding="utf-8") for f in sorted((ROOT / "examples").glob("*.tg"))}
PAGE = (ROOT / "docs" / "tg_format.md").read_text(encoding="utf-8")
DOCUMENTED = re.findall(r"```tg\n(.*?)```", PAGE, re.DOTALL)


def same(a: Graph, b: Graph) -> bool:
    """The very same nodes under the same names in the same order."""
    return a == b and list(a.outputs) == list(b.outputs) and list(a.updates) == list(b.updates) and a.nodes == b.nodes


# ---- documents ----


@pytest.mark.parametrize("text", EXAMPLES.values(), ids=list(EXAMPLES))
def test_the_examples_read_back(text):
    g = parse_graph(text)
    assert same(parse_graph(print_graph(g)), g)


@pytest.mark.parametrize("text", DOCUMENTED, ids=range(len(DOCUMENTED)))
def test_every_example_of_the_documentation_is_a_graph(text):
    g = parse_graph(text)
    assert same(parse_graph(print_graph(g)), g)


def test_the_documentation_names_every_statement_and_shows_it():
    statements = {"dim", "input", "parameter", "state", "output", "update", "define"}
    assert statements <= KEYWORDS
    assert set(re.findall(r"^\| `(\w+)", PAGE, re.MULTILINE)) & KEYWORDS >= statements
    shown = {line.split()[0] for text in DOCUMENTED for line in text.splitlines() if line.strip()}
    assert shown >= statements | {"tg", "return"}


# ---- expressions ----

HAND = HEAD + "input j i32[4]\n"
N = tg.dim("n", 1, 64)
X, W, AT, J = tg.input("x", (N, 4)), tg.parameter("w", (4, 4)), tg.input("i", (3,), tg.i32), tg.input("j", (4,), tg.i32)
K = tg.state("k", (8, 4)).read()
WRITTEN = {
    "x + 1.0": X + 1.0, "1.0 - x": 1.0 - X, "x * w[0] / 2.0": X * W[0] / 2.0, "x @ w": X @ W, "x @ w.T.T": X @ W.T.T,
    "w.T": W.T, "(x + 1.0).T": (X + 1.0).T, "-x ** 2.0": -(X ** 2.0), "(-x) ** 2.0": (-X) ** 2.0, "2.0 ** -x": 2.0 ** -X,
    "x ** 2.0 ** w[0]": X ** (2.0 ** W[0]), "x - w[0] - w[1]": (X - W[0]) - W[1], "x - (w[0] - w[1])": X - (W[0] - W[1]),
    "x + w[0] * w[1]": X + W[0] * W[1], "j // 2 % 3": (J // 2) % 3, "j | 1 ^ 2 & j": J | (1 ^ (2 & J)),
    "j & 1 < 2 + j": (J & 1) < (2 + J), "~(x < 1.0) & (x >= w[0])": ~(X < 1.0) & (X >= W[0]), "x <= 1.0": X <= 1.0,
    "x > 1.0": X > 1.0, "--x": arithmetic.neg(-X), "x + inf": X + math.inf, "x + -nan": X + math.nan, "x + 1e-3": X + 1e-3,
    "x + .5": X + 0.5, "x + 2.": X + 2.0, "x + -0.0": X + -0.0, "x * (1 / 8)": X * 0.125, "x * (7 // 2 - 2 * 3 % 4)": X * 1,
    "j + n": J + N, "x + {n + 1}": X + (N + 1), "x * (n * 2)": X * (N * 2),
    "w[1]": W[1], "w[-1]": W[-1], "w[1, 2]": W[1, 2], "w[1:3]": W[1:3], "w[::2]": W[::2], "w[::-1]": W[::-1],
    "w[3:0:-2]": W[3:0:-2], "w[:, 1:]": W[:, 1:], "w[..., 0]": W[..., 0], "w[none]": W[None], "w[:, none, 2]": W[:, None, 2],
    "w[i]": W[AT], "w[:, i]": W[:, AT], "w[-3:-1, ...]": W[-3:-1, ...], "x[n - 1]": X[N - 1], "x[{n // 2}:]": X[N // 2:],
    "x[1:n]": X[1:N], "w[5:]": W[5:], "w[1][2]": W[1][2], "w[1,]": W[1], "w[:]": W, "w[-9:9]": W, "w[(1)]": W[1],
    "softmax(x)": tg.softmax(X), "softmax(x,)": tg.softmax(X), "softmax(x;)": tg.softmax(X),
    "softmax(x, axis=0)": tg.softmax(X, axis=0), "softmax(x; axis=(0))": tg.softmax(X, axis=0),
    "softmax(x; axis=(1 + 1) - 2)": tg.softmax(X, axis=0), "softmax(x; axis=-1 + 1,)": tg.softmax(X, axis=0),
    "rms_norm(x, w[0]; eps=1e-5)": tg.rms_norm(X, W[0], eps=1e-5), "layer_norm(x, w[0])": tg.layer_norm(X, W[0]),
    'layer_norm(x, w[0]; absent=("weight",))': tg.layer_norm(X, None, W[0]), "linear(x, w, w[1])": tg.linear(X, W, W[1]),
    "concat(w, w, k; axis=0)": tg.concat(W, W, K, axis=0), 'gelu(x; approximate="tanh")': tg.gelu(X, approximate="tanh"),
    "cast(x; dtype=bf16)": X.cast(tg.bf16), "sum(w; axes=(0, 1))": W.sum(),
    "pad(w; padding=((1, 0), (0, {n})), value=0)": atomic.pad(W, [(1, 0), (0, N)], 0),
    "iota(; shape=({n}, 2), axis=0, dtype=i64)": atomic.iota((N, 2), 0, tg.i64),
    'copy_to(x; device="cuda:0")': leaves.copy_to(X, "cuda:0"),
    "constant((1), i32)": tg.constant(1, tg.i32), "constant(-2, i8)": tg.constant(-2, tg.i8),
    "constant(true, bool)": tg.constant(True), "constant(1, f32)": tg.constant(1.0, tg.f32),
    "constant([], f16)": tg.constant(np.zeros(0), tg.f16),
    "constant([1, 2.5, -inf], bf16)": tg.constant([1, 2.5, -math.inf], tg.bf16),
    "constant([18446744073709551615, 0], u64)": tg.constant(np.array([2**64 - 1, 0], np.uint64)),
    "constant({2*n}, i64)": tg.constant(2 * N, tg.i64), "constant(n + 1, i32)": tg.constant(N + 1, tg.i32),
    'constant(base64("AACAPw=="), f32[1, 1])': tg.constant(np.float32([[1.0]])),
    "exp(x)   # words": tg.exp(X), "exp(x)#words": tg.exp(X), "exp(x) # 0123456789ab": tg.exp(X), "exp( x )": tg.exp(X),
}


@pytest.mark.parametrize("text", WRITTEN, ids=lambda t: t)
def test_an_expression_is_what_python_would_make_of_it(text):
    assert parse_graph(f"{HAND}output y = {text}\n").outputs["y"] is WRITTEN[text]


def test_the_order_of_operators_is_pythons():
    """Every pair of binary operators against Python's own reading of the same text."""
    signs = ["|", "^", "&", "+", "-", "*", "//", "%", "<", ">="]
    agreed = 0
    for a in signs:
        for b in signs:
            if a in "<>=" and b in "<>=":                           # Python makes a chain of them
                continue
            text = f"j {a} j {b} j"
            try:
                expected = eval(text, {"j": J})
            except tg.TensorGraphsError as e:
                message = str(e).split(": ", 1)[1].split("\n")[0]
                with pytest.raises(TextError, match=re.escape(message)):
                    parse_graph(f"{HAND}output y = {text}\n")
            else:
                assert parse_graph(f"{HAND}output y = {text}\n").outputs["y"] is expected, text
                agreed += 1
    assert agreed > 50


@pytest.mark.parametrize("text", ["\ufefftg 1\ninput x f32[2]\noutput y = x\n", "tg 1\r\ninput x f32[2]\r\noutput y = x\r\n",
                                  "\n # words\n\ttg 1 # more\ninput x f32[2]\noutput y = x"], ids=["bom", "crlf", "spaces"])
def test_what_editors_put_into_files_is_no_matter(text):
    assert same(parse_graph(text), tg.graph({"y": tg.input("x", (2,))}))


def test_a_long_sum_is_read_without_deep_recursion():
    y = parse_graph("tg 1\ninput x f32[2]\noutput y = " + " + ".join(["x"] * 3000) + "\n").outputs["y"]
    assert y.inputs[1] is tg.input("x", (2,)) and y.op.name == "add"


def test_a_graph_of_five_thousand_nodes_reads_back():
    y = tg.input("x", (2,))
    for _ in range(5000):
        y = atomic.sin(y)
    g = tg.graph(y)
    assert same(parse_graph(print_graph(g)), g)


# ---- what cannot be read ----


def complaint(text: str) -> TextError:
    with pytest.raises(TextError) as caught:
        parse_graph(text, "g.tg")
    return caught.value


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_told_at_its_place_on_a_screen(name):
    found = complaint(WRONG[name])
    first, shown, caret, *fix = str(found).split("\n")
    assert first.startswith(f"g.tg:{found.line}:{found.column}: ")
    assert ".py" not in str(found) and "Error" not in first
    source = WRONG[name].split("\n")[found.line - 1]
    assert 1 <= found.column <= len(source) + 1
    assert all(len(line) < 250 and line.isprintable() for line in (first, shown, caret, *fix))
    assert len(fix) == 1 and fix[0].startswith("  fix: ")
    assert caret.strip() == "^"
    under, there = shown[len(caret) - 1:len(caret)], source[found.column - 1:found.column]
    assert under.strip() == (there.strip() if there.isprintable() else "·")


def test_the_messages_are_those_last_reviewed(snapshot):
    snapshot.check("messages.txt", "\n".join(f"---- {name}\n{complaint(text)}\n" for name, text in WRONG.items()))


def test_as_many_brackets_as_allowed_are_read():
    text = "(" * (MAX_NESTING - 1) + "x" + ")" * (MAX_NESTING - 1)
    assert parse_graph(f"tg 1\ninput x f32[2]\noutput y = {text}\n").outputs["y"] is tg.input("x", (2,))
    assert "nested more than" in str(complaint(f"tg 1\ninput x f32[2]\noutput y = ({text})\n"))


def test_a_stack_that_is_nearly_full_is_told_too():
    text = "tg 1\ninput x f32[2]\noutput y = " + "(" * (MAX_NESTING - 1) + "x" + ")" * (MAX_NESTING - 1) + "\n"

    def deeper(left: int) -> object:
        return deeper(left - 1) if left else parse_graph(text)

    with pytest.raises(TextError, match="nested too deeply for the stack"):
        deeper(sys.getrecursionlimit() - len(inspect.stack()) - 120)


BITS = ["", *'()[};=-1x".%#\n,\0é', "nan", "none", "f32", "{n}", "//", "**", "define", "base64"]


@settings(max_examples=100)
@given(st.data())
def test_a_damaged_text_is_a_graph_or_a_text_error(data):
    text = data.draw(st.sampled_from([*DOCUMENTED, *EXAMPLES.values()]))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + data.draw(st.sampled_from(BITS)) + text[at + data.draw(st.integers(0, 4)):]
    try:
        g = parse_graph(text)
    except TextError:
        return
    assert same(parse_graph(print_graph(g)), g)
