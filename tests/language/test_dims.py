"""Dims: every simplification, bound and proof is held against plain evaluation at sizes in range."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import timeit

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tensor_graphs.language import dims as d
from tensor_graphs.language.dim_functions import compile_dims
from tensor_graphs.language.dim_proofs import dim_ge, exact_div, proved_equal
from tensor_graphs.language.dim_reader import parse_dim
from tensor_graphs.language.dims import (
    MAX_SIZE,
    Dim,
    DimError,
    bounds,
    ceil_div,
    clamp,
    dim,
    dim_max,
    dim_min,
    evaluate,
)

N, M, S = dim("n", 1, 40), dim("m", 1, 9), dim("s", 0, 5)
BIG, WIDE = dim("big", 1, 10**6), dim("wide", 3, 10**6)
SYMBOLS = {str(x): x for x in (N, M, S)}
quick = settings(derandomize=True, deadline=None, max_examples=100)


def trees() -> st.SearchStrategy:
    """Expressions as text in Python's syntax: the same text is evaluated by Python itself and built as a Dim."""
    divisors = st.sampled_from(["2", "3", "4", "8", "-3", "m", "(n + 1)", "2*m"])
    leaf = st.one_of(st.sampled_from(["n", "m", "s"]), st.integers(-12, 12).map(str))

    def grow(inner: st.SearchStrategy) -> st.SearchStrategy:
        return st.one_of(
            st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
            st.tuples(inner, st.sampled_from(["//", "%"]), divisors).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
            st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"))

    return st.recursive(leaf, grow, max_leaves=6)


def build(text: str) -> d.Dim:
    return eval(text, {"min": lambda *a: dim_min(*a), "max": lambda *a: dim_max(*a), **SYMBOLS})


def values(text: str, points: list[dict[str, int]]) -> list[int]:
    code = compile(text, "expression", "eval")
    return [eval(code, {"min": min, "max": max, **p}) for p in points]


POINTS = [{"n": n, "m": m, "s": s} for n in (1, 2, 3, 7, 8, 9, 17, 39, 40) for m in (1, 2, 5, 8, 9) for s in (0, 1, 5)]


def agrees(text: str) -> d.Dim:
    x = build(text)
    assert [evaluate(x, p) for p in POINTS] == values(text, POINTS)
    return x


@quick
@given(trees())
def test_an_expression_means_what_python_means_by_its_text(text):
    agrees(text)


@quick
@given(trees())
def test_bounds_hold_everywhere(text):
    low, high = bounds(build(text))
    found = values(text, POINTS)
    assert low <= min(found) and max(found) <= high


@quick
@given(trees())
def test_text_reads_back_as_the_very_same_dim(text):
    x = build(text)
    again = parse_dim(d.format_dim(x), SYMBOLS)
    assert again == x and type(again) is type(x) and d.format_dim(again) == d.format_dim(x)


@quick
@given(trees(), trees(), trees())
def test_sums_and_products_have_one_form_however_they_are_written(a, b, c):
    x, y, z = build(a), build(b), build(c)
    assert x + y == y + x and x * y == y * x and (x + y) + z == x + (y + z) and (x * y) * z == x * (y * z)
    assert x * (y + z) == x * y + x * z and x - x == 0 and hash(x + y) == hash(y + x) and 0 - (0 - x) == x == -(0 - x)


@quick
@given(trees(), st.sampled_from([2, 3, 5, 8, 12]), trees())
def test_whole_multiples_of_the_divisor_leave_the_floor(a, c, q):
    x, y = build(a), build(q)
    if c % 2:    # with an even divisor a coefficient of c/2 ≡ −c/2 has two forms, which proved_equal tells to be one
        assert (x + c * y) // c == x // c + y and (x + c * y) % c == x % c
    assert proved_equal((x + c * y) // c, x // c + y) and x // c * c + x % c == x
    assert -(-x // c) == (x + c - 1) // c == d.ceil_div(x, c) and proved_equal(x // c // 5, x // (5 * c))
    assert (x + (2 * M + 1) * y) // (2 * M + 1) == x // (2 * M + 1) + y


@quick
@given(st.tuples(*[st.integers(-20, 20)] * 3), st.integers(1, 12), st.integers(-20, 20), st.integers(1, 12))
def test_a_floor_of_a_floor_is_one_floor(coefficients, b, k, c):
    n, m, one = coefficients
    x = n * BIG + m * WIDE + one
    assert (x // b + k) // c == (x + k * b) // (b * c)


@quick
@given(trees(), st.sampled_from([2, 3, 8, 32]), st.sampled_from(["1", "3", "5", "8", "m", "(n + 1)", "3*m"]), st.booleans(),
       st.integers(0, 31))
def test_a_position_inside_of_a_group_does_not_change_the_group(a, c, b, backwards, number):
    x, size, place = build(a), build(b), dim("a", 0, c - 1)
    rest = c - 1 - place if backwards else place
    group, within = (c * x + rest) // (c * size), (c * x + rest) % (c * size)
    assert proved_equal(group, x // size) and proved_equal(within, c * (x % size) + rest)
    if b != "8":    # an even divisor has two forms, as above
        assert group == x // size and within == c * (x % size) + rest
    at = number % c
    for p, whole, divisor in zip(POINTS, values(a, POINTS), values(b, POINTS), strict=True):
        flat, by = c * whole + (c - 1 - at if backwards else at), c * divisor
        assert (evaluate(group, p | {"a": at}), evaluate(within, p | {"a": at})) == (flat // by, flat % by)


AXES = st.tuples(st.sampled_from([1, -1, 2, 3, 4, 6, -8, 12, 16, 24, 32, 96]), st.integers(0, 3), st.integers(0, 40))
"""the step of an axis in memory, its first index, how many follow"""


@settings(quick, max_examples=300)
@given(st.lists(AXES, min_size=1, max_size=4), st.integers(-100, 100), st.sampled_from([2, 8, 12, 32, 96]), st.booleans(),
       st.lists(st.tuples(*[st.integers(0, 10**6)] * 4), min_size=5, max_size=5))
def test_floors_of_flat_positions_are_those_of_integers(axes, start, divisor, symbolic, points):
    symbols = [dim(f"i{number}", low, low + more) for number, (_, low, more) in enumerate(axes)]
    by = divisor * M if symbolic else divisor
    flat = sum((step * symbol for (step, *_), symbol in zip(axes, symbols, strict=True)), start)
    group, within = flat // by, flat % by
    for point in points:
        at = [low + place % (more + 1) for (_, low, more), place in zip(axes, point, strict=False)]
        m = 1 + sum(point) % 9 if symbolic else 1
        number, binding = start + sum(step * place for (step, *_), place in zip(axes, at, strict=True)), {"m": m}
        binding |= {f"i{axis}": place for axis, place in enumerate(at)}
        assert (evaluate(group, binding), evaluate(within, binding)) == (number // (divisor * m), number % (divisor * m))


@quick
@given(trees(), trees())
def test_comparisons_that_are_decided_are_right(a, b):
    verdict, equal = dim_ge(build(a), build(b)), proved_equal(build(a), build(b))
    pairs = list(zip(values(a, POINTS), values(b, POINTS), strict=True))
    if verdict is not None:
        assert all((x >= y) is verdict for x, y in pairs)
    if equal:
        assert all(x == y for x, y in pairs)


@quick
@given(trees(), trees())
def test_a_product_is_divided_by_each_of_its_factors(a, b):
    x, y = build(a), build(b)
    assume(y != 0)
    q = exact_div(x * y, y)
    assert q is not None and proved_equal(q * y, x * y)


@quick
@given(trees(), trees(), trees())
def test_replacing_symbols_and_then_evaluating_is_evaluating(text, a, b):
    x = build(text)
    p = {"n": 7, "m": 3, "s": 2}
    half = d.substitute(x, {"n": 7, "unused": 3})
    assert evaluate(half, {"m": 3, "s": 2}) == evaluate(x, p)
    inside = dim_max(1, dim_min(40, build(a)))
    assert evaluate(d.substitute(x, {"n": inside}), p) == evaluate(x, p | {"n": evaluate(inside, p)})


@quick
@given(st.lists(trees(), min_size=1, max_size=6))
def test_the_compiled_function_gives_the_same_values(texts):
    exprs = [build(t) for t in texts]
    function = compile_dims(exprs, ["s", "unused", "n", "m"])
    for p in POINTS[::7]:
        assert function(p["s"], 99, p["n"], p["m"]) == [evaluate(x, p) for x in exprs]


@pytest.mark.parametrize(("x", "text"), [
    (N + 0, "n"), (2 * N * M - 4 * N + 8 - N * N, "2*m*n - n**2 - 4*n + 8"), (N % 8, "n - 8*(n // 8)"),
    (-(N // 3), "-(n // 3)"),
    (N - N // 3, "n - n // 3"), (3 * (N // 5) * M, "3*m*(n // 5)"), ((N + 7) // 8, "(n + 7) // 8"), (N // M, "n // m"),
    (N // (M + 1), "n // (m + 1)"), (dim_min(N, 16), "min(16, n)"), (dim_max(N + 4, M + 4), "max(m, n) + 4"),
    (dim_min(8 * N, 8 * M), "8*min(m, n)"), ((N // 3) ** 2, "(n // 3)**2"), (N * 0, "0"), (5 - N, "-n + 5")])
def test_text_is_what_a_person_would_write(x, text):
    assert d.format_dim(x) == str(x) == text


@pytest.mark.parametrize(("x", "want"), [
    (2 * N * M - 3, (-1, 717)), (N * N - N, (0, 1560)), (40 - N, (0, 39)), (N % 8, (0, 7)), (3 * N // 4, (0, 30)),
    ((N + 7) // 8 * 8 - N, (0, 7)), (-N // 8, (-5, -1)), (N // M, (0, 40)), (N % M, (0, 8)), (dim_min(N, 16), (1, 16)),
    (N - dim_min(N, 16), (0, 24)), (dim_max(N, M) - N, (0, 8)), (S * S - 4, (-4, 21)), (N * (S + 1), (1, 240)), (7,
    (7, 7))])
def test_bounds_are_tight_where_the_docstring_says_so(x, want):
    assert bounds(x) == want
    if want != (7, 7):
        assert x.bounds() == want


@pytest.mark.parametrize(("low", "high", "nearest"), [(1, 16, 16), (30, 1000, 30), (1, 40, 20), (0, 0, 0), (20, 20, 20)])
def test_a_size_out_of_range_is_replaced_by_the_nearest_in_range(low, high, nearest):
    assert clamp(20, dim("n", low, high)) == nearest and clamp(20, 7) == 7


def test_bounds_decide_what_they_can():
    assert N // 50 == 0 and dim_min(N, 41) == N and dim_max(N, 40) == 40 and N % 50 == N and dim_min(N, N + S) == N
    assert dim_min(dim_min(N, M), S) == dim_min(N, dim_min(S, M)) and dim_max(N, N, M) == dim_max(M, N)
    assert dim_max(3) == 3


def test_an_image_in_groups_of_channels_is_normalised_by_the_group_of_the_channel():
    channel, row, column, size = dim("i", 0, 255), dim("j", 0, 31), dim("k", 0, 31), dim("size", 1, 64)
    assert (1024 * channel + 32 * row + column) // 8192 == channel // 8
    assert (8 * channel * size + column) // (8 * size) != channel and (32 * channel + row) // (32 * size) == channel // size
    assert (1024 * channel + 33 * row + column) // 8192 != channel // 8, "31·33 + 31 is beyond a channel"


def test_plain_numbers_stay_plain_numbers():
    for x in (N - N + 3, (2 * N - N * 2) // 5, dim_min(3, 4), dim_max(np.int64(3), 2), N**0, N * 0,
              exact_div(12 * N, 4 * N)):
        assert type(x) is int
    assert np.int64(2) * N == N * np.int32(2) == 2 * N and isinstance(np.int64(2) * N, d.Expr)
    assert d.is_static(3) and not d.is_static(N)


@pytest.mark.parametrize(("a", "b", "verdict"), [
    (N, 1, True), (N, 41, False), (N, 2, None), ((N + 7) // 8 * 8, N, True), (N, N // 8 * 8, True),
    (N // 8 * 8, N - 8, True),
    (BIG * BIG, BIG, True), (BIG + 1, BIG, True), (BIG, BIG + WIDE, False), (dim_max(BIG, WIDE), BIG, True),
    (BIG, dim_min(BIG, WIDE), True), (BIG, WIDE, None), (N * N + 3, 3 * N, True), (BIG * WIDE, BIG + WIDE, None)])
def test_what_is_always_or_never_greater_is_told_apart_from_it_depends(a, b, verdict):
    assert dim_ge(a, b) is verdict


@pytest.mark.parametrize(("a", "b", "q"), [
    (N * M * 640, N * M, 640), (N * N - 1, N - 1, N + 1),
    (BIG * BIG + 2 * BIG * WIDE + WIDE * WIDE, BIG + WIDE, BIG + WIDE),
    (12, 4, 3), (12, 5, None), (12, 0, None), (N, 0, None), (N, 2, None), (6 * N + 4, 2, 3 * N + 2), (S * N, S, N),
    (N, S, None), (0, N, 0),
    (BIG, WIDE, None), (N * (N + 1), 2, N * (N + 1) // 2), (BIG // 8 * 8 * M, M * 8, BIG // 8), (7, N, None)])
def test_exact_division_finds_the_quotient_or_says_none(a, b, q):
    assert exact_div(a, b) == q


def test_minima_and_maxima_over_large_ranges_are_compared_by_sympy():
    assert proved_equal(dim_max(BIG, WIDE) + dim_min(BIG, WIDE), BIG + WIDE)
    assert not proved_equal(dim_max(BIG, WIDE), BIG)


def test_floors_over_large_ranges_are_compared_residue_by_residue():
    quarters = BIG // 4 + (BIG + 1) // 4 + (BIG + 2) // 4 + (BIG + 3) // 4
    assert quarters != BIG and proved_equal(quarters, BIG) and exact_div(WIDE * (WIDE + BIG), 2) is None
    half = exact_div(WIDE * (WIDE + 1), 2)
    assert half is not None and evaluate(half, {"wide": 1000}) == 500500
    assert not proved_equal((BIG + WIDE) // 3, BIG // 3 + WIDE // 3)


def test_identities_outside_of_the_form_are_proved_by_trying_all_sizes():
    assert N // 2 + (N + 1) // 2 != N and proved_equal(N // 2 + (N + 1) // 2, N)
    fixed = dim("fixed", 4, 4)
    assert fixed != 4 and proved_equal(fixed, 4) and not proved_equal(N, 4) and not proved_equal(N, M)


def test_a_near_miss_is_not_proved():
    assert not proved_equal(N // 40, 0) and dim_ge(39, N) is None and dim_ge(39, dim("n", 1, 39)) is True


@pytest.mark.processes
def test_everyday_questions_do_not_import_sympy():
    code = """
import sys
from tensor_graphs.language.dim_functions import compile_dims
from tensor_graphs.language.dim_proofs import *
from tensor_graphs.language.dims import *
n, m = dim('n', 1, 10**6), dim('m', 1, 64)
assert proved_equal(n * m * 2, m * 2 * n) and not proved_equal(n, m) and not proved_equal(n // 8, n // 9)
assert exact_div(n * m, m) == n and exact_div(n, m) is None and dim_ge(n, m) is None and dim_ge(n + 63, m)
assert dim_ge(n, n // 8 * 8) and compile_dims([n * m], ['n', 'm'])(2, 3) == [6]
assert 'sympy' not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_symbols_come_sorted_and_once_also_from_within_calls():
    assert d.symbols((S + N) // M + N) == (M, N, S) and d.symbols(3) == ()
    assert [str(x) for x in d.symbols(N * M)] == ["m", "n"]


def test_the_order_of_dims_is_total_and_repeatable():
    xs = [N * M, N, 3, M + 1, -1, dim_min(N, M)]
    backwards = xs[::-1]
    assert sorted(xs, key=d.sort_key) == sorted(backwards, key=d.sort_key)
    assert sorted(xs, key=d.sort_key)[:2] == [-1, 3]


def test_the_bounds_of_a_symbol_are_part_of_what_it_is():
    other = dim("n", 1, 41)
    assert other != N and other == dim("n", 1, 41) and hash(other) == hash(dim("n", 1, 41))
    for meet in (lambda: N + other, lambda: N * other, lambda: dim_min(N, other), lambda: other // 3 - N // 3,
                 lambda: N // other):
        with pytest.raises(DimError, match=r"two dims named 'n' meet, one from 1 to 4[01], one from 1 to 4[01]"):
            meet()
    assert d.substitute(N * M, {"n": M, "m": dim("m", 1, 9)}) == M * M


def test_symbols_are_exchanged_all_at_once():
    a, b = dim("a", 1, 9), dim("b", 1, 9)
    assert d.substitute(a * a + b, {"a": b, "b": a}) == b * b + a


@pytest.mark.processes
@pytest.mark.parametrize("x", [N, N * M + N // 8 - dim_min(N, M)])
def test_dims_survive_pickling_into_another_process(x):
    code = """
import pickle, sys
from tensor_graphs.language.dim_functions import compile_dims
from tensor_graphs.language.dims import *
n, m, x = dim('n', 1, 40), dim('m', 1, 9), pickle.loads(sys.stdin.buffer.read())
assert x in (n, n*m + n//8 - dim_min(n, m)) and x - x == 0
print(x)
"""
    ran = subprocess.run([sys.executable,
    "-c", code], input=pickle.dumps(x), stdout=subprocess.PIPE, timeout=60, check=True)
    assert ran.stdout.decode().strip() == str(x) and pickle.loads(pickle.dumps(x)) == x


@pytest.mark.parametrize(("act", "message"), [
    (lambda: dim("n", 1), r"has no upper bound.*fix: say the largest size.*tg.dim\(\"n\", 1, 4096\)"),
    (lambda: dim("n", 5, 4), "the dim 'n' from 5 to 4"),
    (lambda: dim("n", -1, 4), "the dim 'n' from -1 to 4.*0 ≤ lo ≤ hi"),
    (lambda: dim("n", 1, 4.5), "from 1 to 4.5"), (lambda: dim("n", True, 4), "from True to 4"),
    (lambda: dim("kv len", 1, 4), "cannot be named 'kv len'"), (lambda: dim("if", 1, 4), "cannot be named 'if'"),
    (lambda: dim("min", 1, 4), "cannot be named 'min'"), (lambda: dim("größe", 1, 4), "cannot be named"),
    (lambda: N // 0, r"\(n\) // \(0\): the divisor may be 0"),
    (lambda: N % S, "the divisor may be 0, it lies between 0 and 5"),
    (lambda: 8 // (N - 4), "the divisor may be 0, it lies between -3 and 36"),
    (lambda: N / 2, "dims are whole numbers"),
    (lambda: N * 0.5, r"the dim n and 0.5\b.*dims are whole numbers: n // 2 floors"), (lambda: 1.5 - N, "the dim n and 1.5"),
    (lambda: N // 2.0, "the dim n and 2.0"),
    (lambda: 2 / N, "dims are whole numbers"), (lambda: bool(N), "has no value while the graph"),
    (lambda: N < 3, "dim_ge"),
    (lambda: int(N), "has no value"), (lambda: range(N), "has no value"), (lambda: N**-1, "exponent"),
    (lambda: N**M, "exponent"),
    (lambda: evaluate(N + M, {"n": 41, "m": 1}), r"the dim 'n' is 41, it ranges from 1 to 40.*tg.dim\(\"n\", 1, 41\)"),
    (lambda: evaluate(N, {"n": 0}), r"'n' is 0, it ranges from 1 to 40.*tg.dim\(\"n\", 0, 40\)"),
    (lambda: evaluate(N + M, {"k": 1, "n": 2}), "the dim 'm' has no value, needed for m \\+ n.*given are k, n"),
    (lambda: evaluate(N, {"n": 2.0}), "the dim 'n' is given 2.0.*an int from 1 to 40"),
    (lambda: evaluate(2.5, {}), "2.5 .float. is no dim"),
    (lambda: evaluate(N, {"n": True}), "the dim 'n' is given True"),
    (lambda: d.substitute(N, {"n": 41}), "'n' is 41"),
    (lambda: d.substitute(N, {"n": N + 1}), "its replacement n \\+ 1 from 2 to 41"),
    (lambda: dim_min(), "min of nothing"), (lambda: dim_max(N, 1.5), "1.5 .float. is no dim"),
    (lambda: compile_dims([N * M], ["n"]), "m\\*n needs the dim 'm'"), (lambda: compile_dims([N], ["n", "n"]), "twice"),
    (lambda: parse_dim("n + q", SYMBOLS), "no dim is named 'q'.*known here: m, n, s"),
    (lambda: parse_dim("n +", SYMBOLS), "is no dim"),
    (lambda: parse_dim("n // 0", SYMBOLS), "the divisor may be 0|division by 0"),
    (lambda: parse_dim("4 % 0"), "division by 0"),
    (lambda: parse_dim("__import__('os')", SYMBOLS), "is no dim"),
    (lambda: parse_dim("n.lo", SYMBOLS), "is no dim"),
    (lambda: parse_dim("9**9**9**9"), "is no dim"), (lambda: parse_dim("1.5"), "is no dim"),
    (lambda: parse_dim("True"), "is no dim"),
    (lambda: parse_dim("(" * 5000 + "n" + ")" * 5000, SYMBOLS), "is no dim"),
    (lambda: parse_dim("n\0", SYMBOLS), "is no dim"),
    (lambda: parse_dim("-" * 3000 + "n", SYMBOLS), "is no dim")])
def test_what_cannot_be_meant_is_refused_with_names_values_and_a_fix(act, message):
    with pytest.raises(DimError) as caught:
        act()
    assert re.search(message, str(caught.value), re.DOTALL), str(caught.value)


def test_other_types_keep_their_say_on_the_operators():
    class Left:
        def __radd__(self, other: object) -> str:
            return f"{other} taken"

    assert N + Left() == "n taken"
    with pytest.raises(TypeError):
        N + 1.5


def test_the_value_is_checked_only_for_dims_that_occur():
    assert evaluate(N + 1, {"n": np.int64(4), "m": 10**9}) == 5 and evaluate(np.int64(3), {}) == 3
    assert type(evaluate(N, {"n": np.int64(4)})) is int


def test_a_hundred_expressions_are_computed_in_microseconds():
    exprs = [2560 * N * i + (N + 7) // 8 * i + M * N + 64 * i for i in range(100)]
    function = compile_dims(exprs, ["n", "m"])
    seconds = min(timeit.repeat(lambda: function(17, 3), number=50, repeat=5)) / 50
    assert seconds < 200e-6, f"{seconds * 1e6:.1f} µs"     # 10 µs when the machine is idle


def test_a_product_that_multiplies_out_to_too_many_terms_is_refused() -> None:
    product: Dim = 1
    with pytest.raises(DimError, match="has 512 terms when its products are multiplied out"):
        for i in range(30):
            product = product * (dim(f"m{i}", 1, 9) + 1)


def test_a_size_beyond_64_bits_is_no_dim() -> None:
    assert bounds(dim("n", 1, MAX_SIZE)) == (1, MAX_SIZE)
    with pytest.raises(DimError, match="the dim 'n' up to 9223372036854775808, which is beyond 64 bits"):
        dim("n", 1, MAX_SIZE + 1)
    with pytest.raises(DimError, match="the size a number of about 5000 digits is beyond 64 bits"):
        ceil_div(10 ** 5000, 2)
