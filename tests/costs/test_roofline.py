"""costs/roofline.py: bytes and flops are counted as written down by hand, and a guess grows with both."""

from __future__ import annotations

import pytest

import tensor_graphs as tg
from tensor_graphs.costs.roofline import BACKEND_RATES, UNKNOWN_RATES, DeviceRates, estimate_seconds, says_of, uncertainty, work
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language.node import Node
from tests.kernels.cases import CASES, Draw, applied

N = tg.dim("n", 0, 4096)


def asked(node: Node) -> Signature:
    return signature_of(applied(node))


def at(signature: Signature, **dims: int) -> tuple[float, float]:
    return work(signature, tuple(sorted((n, dims[n]) for n in signature.dim_names)))


def test_elementwise_reads_its_operands_and_writes_its_output() -> None:
    x, y = tg.input("x", (N, 8)), tg.input("y", (N, 8))
    assert at(asked(x + y), n=10) == (3 * 10 * 8 * 4, 80)
    assert at(asked(x + y), n=0) == (0, 0)
    assert at(asked(tg.sin(x)), n=1)[0] == 2 * 8 * 4


def test_a_reduction_counts_what_it_reads() -> None:
    assert at(asked(tg.sum(tg.input("x", (N, 8)), 1)), n=10) == (10 * 8 * 4 + 10 * 4, 80)


def test_a_linear_map_costs_two_flops_per_weight_and_row() -> None:
    s = asked(tg.linear(tg.input("x", (N, 64)), tg.input("w", (32, 64), tg.bf16)))
    traffic, flops = at(s, n=10)
    assert traffic == 10 * 64 * 4 + 32 * 64 * 2 + 10 * 32 * 4
    assert 2 * 10 * 32 * 64 <= flops <= 2.2 * 10 * 32 * 64


def test_a_running_sum_is_as_many_steps_as_elements_whatever_its_definition_says() -> None:
    assert at(asked(tg.cumsum(tg.input("x", (N, 64)))), n=10) == (2 * 10 * 64 * 4, 640)


def test_reading_rows_of_a_table_does_not_read_the_table() -> None:
    ids = tg.input("i", (N,), tg.i32)
    for node in (tg.embedding(tg.input("t", (100000, 8)), ids), tg.language.atomic.gather(tg.input("t", (100000, 8)), ids)):
        assert at(asked(node), n=3)[0] == 2 * 3 * 8 * 4 + 3 * 4
    assert at(asked(tg.write_rows(tg.input("t", (100000, 8)), tg.input("v", (N, 8)), start=0)), n=3)[0] == 2 * 3 * 8 * 4
    assert at(asked(tg.write_at_index(tg.input("t", (100000, 8)), tg.input("v", (N, 8)), ids)), n=3)[0] == 2 * 3 * 8 * 4


def test_attention_over_pages_reads_those_of_its_table() -> None:
    q, pages, positions = tg.input("q", (N, 4, 8)), tg.input("pages", (N, 2), tg.i32), tg.input("positions", (N,), tg.i32)
    for rows in (16, 1000, 10**6):
        node = tg.paged_attention(q, *(tg.input(name, (rows, 2, 8)) for name in "kv"), pages, positions, page=16, scale=1.0)
        read = min(rows, 3 * 2 * 16)
        assert at(asked(node), n=3)[0] == (2 * 3 * 4 * 8 + 3 * 2 + 2 * read * 2 * 8) * 4


@pytest.mark.parametrize("op", CASES)
def test_every_op_has_a_finite_guess_on_every_backend(op: str) -> None:
    for dtype in (tg.f32, tg.i32, tg.bool_, tg.u32, tg.u8, tg.bf16):
        try:
            s = asked(CASES[op](Draw(3, dtype)))
        except tg.language.errors.DTypeError:
            continue
        for backend in (*BACKEND_RATES, "another"):
            assert 0 < estimate_seconds(s, {}, backend) < 1
        return
    pytest.fail(f"no dtype for {op}")


def test_a_guess_is_the_slower_of_memory_and_arithmetic_plus_a_call() -> None:
    s = asked(tg.sin(tg.input("x", (N, 8))))
    traffic, flops = at(s, n=1000)
    slow_memory, slow_math = DeviceRates(1e6, 1e15), DeviceRates(1e15, 1e6)
    for name, rates in (*BACKEND_RATES.items(), ("another", UNKNOWN_RATES)):
        by_memory, by_math = (estimate_seconds(s, {"n": 1000}, name, device) - rates.call_seconds
                              for device in (slow_memory, slow_math))
        assert by_memory == pytest.approx(traffic / (1e6 * rates.bandwidth_share))
        assert by_math == pytest.approx(flops / (1e6 * rates.flop_share))
        estimates = [estimate_seconds(s, {"n": n}, name) for n in (0, 1, 100, 4096)]
        assert estimates == sorted(estimates) and estimates[0] == pytest.approx(rates.call_seconds)


def test_what_is_uncertain_of_a_guess_is_what_would_be_gone_were_it_off_by_as_much_as_guesses_are() -> None:
    for name, rates in (*BACKEND_RATES.items(), ("another", UNKNOWN_RATES)):
        assert 1.0 - uncertainty(name) == pytest.approx(1.0 / rates.off)
        assert 0.0 < uncertainty(name) < 1.0


@pytest.mark.processes
def test_generated_loops_down_columns_are_guessed_faster_than_numpys_passes_over_temporaries() -> None:
    s = asked(tg.softmax(tg.input("x", (2048, 1024)), axis=0))      # measured: 1.0 ms and 7.3 ms
    loops = kernel_named("gen.loops")
    assert estimate_seconds(s, {}, "gen", None, *says_of(loops, s.spec, {})) < estimate_seconds(s, {}, "numpy")
