"""Chains are what their docstring says; powers, roots, 2^x, logarithms and orders obey their laws."""

from __future__ import annotations

import numpy as np
import pytest

from tensor_graphs.proof import residues
from tensor_graphs.proof.residues import CHAINS


def is_prime(n: int) -> bool:
    """Miller and Rabin, with bases that decide for every n below 3·10^24."""
    d, s = n - 1, 0
    while d % 2 == 0:
        d, s = d // 2, s + 1
    for a in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41):
        x = pow(a, d, n)
        if x not in (1, n - 1) and all((x := x * x % n) != n - 1 for _ in range(s - 1)):
            return False
    return True


def draw(m: int, count: int = 200) -> np.ndarray:
    return np.random.default_rng(m).integers(0, m, count, dtype=np.uint64)


@pytest.mark.parametrize("chain", CHAINS)
def test_a_chain_is_three_primes_of_which_each_is_twice_the_one_before_plus_one(chain: tuple[int, int, int]) -> None:
    q, p, r = chain
    assert p == 2 * q + 1 and r == 2 * p + 1 and 2**28 < q and r < 2**31
    for m in chain:
        assert is_prime(m) and m % 8 == 7
        assert all(pow(a, (m - 1) // 2, m) == 1 for a in (2, 3, 5, 7))


@pytest.mark.parametrize("m", CHAINS[0])
def test_inverses_and_roots(m: int) -> None:
    x = draw(m)
    assert np.all(x * residues.inverse(x, m) % np.uint64(m) == (x != 0))
    s, ok = residues.root(x, m)
    assert np.array_equal(ok, [pow(int(v), (m - 1) // 2, m) in (0, 1) for v in x])
    assert np.all(s[ok] * s[ok] % np.uint64(m) == x[ok]) and residues.root(s[ok], m)[1].all()


@pytest.mark.parametrize(("q", "p"), [CHAINS[0][:2], CHAINS[0][1:]])
def test_powers_of_two_turn_sums_into_products_and_logarithms_undo_them(q: int, p: int) -> None:
    x, y = draw(q), draw(q + 1) % np.uint64(q)
    total = (x + y) % np.uint64(q)
    assert np.array_equal(residues.exp2(total, p), residues.exp2(x, p) * residues.exp2(y, p) % np.uint64(p))
    assert residues.exp2(np.uint64([0, 1, 10]), p).tolist() == [1, 2, 1024]
    logarithms, ok = residues.log2(residues.exp2(x, p), p)
    assert ok.all() and np.array_equal(logarithms, x)
    assert not residues.log2(np.uint64([0, p - 1]), p)[1].any()


def test_the_order_is_reversed_by_negation_and_new_for_each_key() -> None:
    m = CHAINS[0][1]
    x = draw(m, 4000)
    one, other = (residues.rank(x, np.uint64(key), m) for key in (5, 6))
    assert np.array_equal(residues.rank((np.uint64(m) - x) % np.uint64(m), np.uint64(5), m), -one)
    assert 0.4 < np.mean(one > 0) < 0.6 and 0.4 < np.mean((one > 0) == (other > 0)) < 0.6
    assert residues.rank(np.uint64([0]), np.uint64(5), m).tolist() == [0]


def test_a_random_function_may_be_odd() -> None:
    m, to = CHAINS[0][1], CHAINS[0][0]
    x = draw(m)
    f, g = (residues.oracle(v, np.uint64(3), m, to, odd=True) for v in (x, (np.uint64(m) - x) % np.uint64(m)))
    assert np.all((f + g) % np.uint64(to) == 0) and len(np.unique(f)) > 190


def test_products_of_matrices_are_exact() -> None:
    m = CHAINS[0][2]
    a, b = draw(m, 300).reshape(6, 50), draw(m - 2, 350).reshape(50, 7)
    exact = (a.astype(object) @ b.astype(object)) % m
    assert np.array_equal(residues.matmul(a, b, m), exact.astype(np.uint64))
