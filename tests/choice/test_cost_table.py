"""What may be used and at which price: rows first, guesses that say so, and refusals with their reasons."""

from __future__ import annotations

import contextlib
import math
import sqlite3
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import pytest

import tensor_graphs as tg
from tensor_graphs.choice.cost_table import ESTIMATE_MARGIN, CostTable, typical_sizes
from tensor_graphs.choice.path_listing import list_paths
from tensor_graphs.choice.request import Request
from tensor_graphs.costs.database_keys import environment_of
from tensor_graphs.costs.roofline import DeviceRates, estimate_seconds
from tensor_graphs.kernels.registry import all_kernels, by_op, kernel_named, register, unregister
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.paths.path import NoPathError
from tensor_graphs.records.database import Database, open_database
from tensor_graphs.records.errors import CorruptDatabase
from tensor_graphs.records.rows import STATUSES, DeviceConstant, Status
from tests.choice.conftest import add_row
from tests.choice.trial_kernels import SLEEPY

N = tg.dim("n", 1, 64)
SOFTMAX = tg.softmax(tg.input("x", (N, 16), tg.f32))
SIGNATURE = signature_of(SOFTMAX)
KERNEL = kernel_named("numpy.softmax")
AT = {"n": 8}


def book(database: Database, tolerance: float = 1e-3, **more: object) -> CostTable:
    return CostTable(database, ("numpy",), tolerance, **more).load()  # type: ignore[arg-type]


def test_without_a_verdict_a_kernel_has_a_price_for_optimists_only(database: Database) -> None:
    assert book(database).cost(KERNEL, SIGNATURE, AT) is None
    cost = book(database).cost(KERNEL, SIGNATURE, AT, optimistic=True)
    assert cost is not None and not cost.measured and cost.error is None and "estimate" in cost.note
    assert cost.seconds == estimate_seconds(SIGNATURE, AT, "numpy")


def test_a_row_is_the_price_at_its_own_sizes_only(database: Database) -> None:
    add_row(database, KERNEL, SIGNATURE)
    row = add_row(database, KERNEL, SIGNATURE, AT, us=123.0)
    cost = book(database).cost(KERNEL, SIGNATURE, AT)
    assert cost is not None and cost.measured and cost.seconds == pytest.approx(123e-6) and cost.note == f"trace {row}"
    other = book(database).cost(KERNEL, SIGNATURE, {"n": 9})
    assert other is not None and not other.measured


def test_the_newest_row_counts(database: Database) -> None:
    add_row(database, KERNEL, SIGNATURE)
    add_row(database, KERNEL, SIGNATURE, AT, us=5.0)
    add_row(database, KERNEL, SIGNATURE, AT, us=70.0, when=datetime.now(UTC) - timedelta(days=3))
    cost = book(database).cost(KERNEL, SIGNATURE, AT)
    assert cost is not None and cost.seconds == pytest.approx(5e-6)


@pytest.mark.parametrize("status", [s for s in STATUSES if s != "PASSED"])
@pytest.mark.parametrize("where", ["everywhere", "at these sizes"])
def test_a_failure_is_a_refusal_with_its_reason(database: Database, status: Status, where: str) -> None:
    add_row(database, KERNEL, SIGNATURE)
    add_row(database, KERNEL, SIGNATURE, AT)
    add_row(database, KERNEL, SIGNATURE, None if where == "everywhere" else AT, status=status)
    reason = book(database).why_not(KERNEL, SIGNATURE, AT)
    assert reason is not None and status in reason
    assert book(database).cost(KERNEL, SIGNATURE, AT, optimistic=True) is None
    elsewhere = book(database).why_not(KERNEL, SIGNATURE, {"n": 9})
    assert (elsewhere is None) == (where == "at these sizes")


def test_a_refusal_for_people_holds_the_line_of_the_newest_log_that_says_why(database: Database) -> None:
    add_row(database, KERNEL, SIGNATURE, {"n": 9}, status="RUNTIME_ERROR", log="of other sizes")
    add_row(database, KERNEL, SIGNATURE)
    add_row(database, KERNEL, SIGNATURE, AT, status="RUNTIME_ERROR", log="an old one", when=datetime.now(UTC) - timedelta(days=3))
    add_row(database, KERNEL, SIGNATURE, AT, status="TIMEOUT", log="no end within 3 s\nmore")
    assert book(database).refusal(KERNEL, SIGNATURE, AT) == "TIMEOUT at these sizes: no end within 3 s"
    assert book(database).refusal(KERNEL, SIGNATURE, {"n": 10}) is None
    assert book(database, 1e-9).refusal(KERNEL, SIGNATURE, {"n": 10}) == "its error 1e-07 is beyond the tolerance 1e-09"
    add_row(database, KERNEL, SIGNATURE, status="RUNTIME_ERROR")
    assert book(database).refusal(KERNEL, SIGNATURE, {"n": 10}) == "RUNTIME_ERROR when compared with the oracle"


def test_the_error_at_these_sizes_counts_beside_the_verdict(database: Database) -> None:
    add_row(database, KERNEL, SIGNATURE, error=1e-7)
    add_row(database, KERNEL, SIGNATURE, AT, error=3e-5)
    assert book(database, 1e-4).why_not(KERNEL, SIGNATURE, AT) is None
    assert "3e-05 is beyond the tolerance 1e-05" in (book(database, 1e-5).why_not(KERNEL, SIGNATURE, AT) or "")
    assert book(database, 1e-5).why_not(KERNEL, SIGNATURE, {"n": 9}) is None


def test_a_result_that_is_not_the_same_math_is_refused_at_any_tolerance(database: Database) -> None:
    add_row(database, KERNEL, SIGNATURE, error=2e-2)
    assert book(database, math.inf).why_not(KERNEL, SIGNATURE, AT) is not None


def test_rows_of_another_number_of_threads_say_nothing(database: Database) -> None:
    add_row(database, KERNEL, SIGNATURE, threads=1)
    assert book(database).why_not(KERNEL, SIGNATURE, AT) == "unverified"
    assert book(database, threads=1).why_not(KERNEL, SIGNATURE, AT) is None
    assert book(database, threads=2).why_not(KERNEL, SIGNATURE, AT) == "unverified"


def test_guesses_use_the_measured_constants_of_the_device(database: Database) -> None:
    assert book(database).device == DeviceRates()
    database.add_constants(environment_of("numpy"), [DeviceConstant("read_bandwidth", 1e9, "byte/s"),
                                                     DeviceConstant("flops_f32", 2e9, "flop/s")])
    assert book(database).device == DeviceRates(1e9, 2e9)
    slow, fast = (estimate_seconds(SIGNATURE, {"n": 64}, "numpy", r) for r in (DeviceRates(1e9, 2e9), DeviceRates()))
    assert slow > fast
    cost = book(database).cost(KERNEL, SIGNATURE, {"n": 64}, True)
    assert cost is not None and cost.seconds == slow


def test_guesses_carry_a_margin_where_a_plan_is_chosen(database: Database) -> None:
    plain, careful = (book(database, margin=m).cost(KERNEL, SIGNATURE, AT, True) for m in (1.0, ESTIMATE_MARGIN))
    assert plain is not None and careful is not None and careful.seconds == ESTIMATE_MARGIN * plain.seconds


def test_a_guess_is_priced_by_what_the_rows_of_its_op_say_of_such_work(database: Database) -> None:
    """Never below a row of its own backend; below one of a backend that could not be as fast."""
    c = kernel_named("c.softmax")
    plain = {k.name: book(database).cost(k, SIGNATURE, AT, True) for k in (KERNEL, c)}
    row = add_row(database, KERNEL, SIGNATURE, AT, us=50.0)
    add_row(database, KERNEL, SIGNATURE)
    other = replace(KERNEL, name="numpy.other", source="another one")
    careful = CostTable(database, ("c", "numpy"), 1e-3, margin=ESTIMATE_MARGIN).load()
    hope, far, estimate = careful.cost(other, SIGNATURE, AT, True), careful.cost(c, SIGNATURE, AT, True), plain[KERNEL.name]
    assert hope is not None and far is not None and estimate is not None
    assert estimate.seconds * ESTIMATE_MARGIN < 50e-6, "else this shows nothing"
    assert not hope.measured and hope.seconds == pytest.approx(50e-6 * ESTIMATE_MARGIN) and f"as trace {row} took" in hope.note
    assert far.seconds < 50e-6
    assert book(database).cost(other, SIGNATURE, AT, True) == estimate, "where the next measurement is sought a guess is a hope"
    elsewhere = careful.cost(other, SIGNATURE, {"n": 9}, True)
    assert elsewhere is not None and "took" not in elsewhere.note


def test_a_guess_does_not_beat_a_row_of_its_own_backend_because_another_backend_comes_near_its_roofline(database: Database) -> None:
    """The numpy kernel does well for a numpy kernel; the C kernel took far longer than its roofline, and the next one may too."""
    c = kernel_named("c.softmax")
    numpys = book(database).cost(KERNEL, SIGNATURE, AT, True)
    assert numpys is not None
    add_row(database, KERNEL, SIGNATURE, AT, us=numpys.seconds * 1e6)
    row = add_row(database, c, SIGNATURE, AT, us=900.0)
    for kernel in (KERNEL, c):
        add_row(database, kernel, SIGNATURE)
    careful = CostTable(database, ("c", "numpy"), 1e-3, margin=ESTIMATE_MARGIN).load()
    hope = careful.cost(replace(c, name="c.other", source="another one"), SIGNATURE, AT, True)
    assert hope is not None and hope.seconds == pytest.approx(900e-6 * ESTIMATE_MARGIN) and f"as trace {row} took" in hope.note


def test_a_guess_is_as_far_off_as_the_kernel_that_it_extends(database: Database) -> None:
    longer = replace(KERNEL, name="numpy.longer", source="longer", extends=lambda spec: ("numpy.softmax", SOFTMAX))
    add_row(database, longer, SIGNATURE)
    guess = book(database, margin=ESTIMATE_MARGIN).cost(longer, SIGNATURE, AT)
    assert guess is not None and guess.margin == ESTIMATE_MARGIN    # nothing was timed
    add_row(database, KERNEL, SIGNATURE)
    add_row(database, KERNEL, SIGNATURE, AT, us=300.0)
    for margin, seconds in ((1.0, estimate_seconds(SIGNATURE, AT, "numpy")), (ESTIMATE_MARGIN, 300e-6)):
        cost = book(database, margin=margin).cost(longer, SIGNATURE, AT)
        assert cost is not None and not cost.measured and cost.seconds == pytest.approx(seconds)


def test_a_slow_kernel_from_outside_says_nothing_of_the_packages(database: Database) -> None:
    careful = CostTable(database, ("numpy",), 1e-3, margin=ESTIMATE_MARGIN)
    before = careful.load().cost(KERNEL, SIGNATURE, AT, True)
    add_row(database, SLEEPY, SIGNATURE, AT, us=20_000.0)
    assert careful.load().cost(KERNEL, SIGNATURE, AT, True) == before
    register(SLEEPY)
    try:
        assert careful.load().cost(KERNEL, SIGNATURE, AT, True) == before
    finally:
        unregister(SLEEPY.name)


def test_paths_are_listed_cheapest_first_and_each_once(database: Database) -> None:
    found = list(islice(list_paths(tg.graph({"y": SOFTMAX}), database=database, backends=("c", "numpy")), 40))
    assert len({p.id for p in found}) == len(found) > 10
    assert [(p.small, p.cost) for p in found] == sorted((p.small, p.cost) for p in found)
    with pytest.raises(NoPathError, match=r"c\.softmax: unverified(.|\n)*\n  fix: .*tg profile"):
        list_paths(tg.graph({"y": SOFTMAX}), database=database, all_kernels_count=False)


def test_paths_whose_steps_are_all_measured_are_listed_alone_and_all_paths_are_counted(database: Database) -> None:
    graph, here = tg.graph({"y": SOFTMAX}), {"database": database, "backends": ("c", "numpy"), "at": AT}
    with pytest.raises(NoPathError, match=r"no path has a measurement of each of its steps(.|\n)*fix: tg profile"):
        list_paths(graph, measured=True, **here)
    add_row(database, KERNEL, SIGNATURE)
    add_row(database, KERNEL, SIGNATURE, AT)
    listing = list_paths(graph, limit=5, measured=True, **here)
    assert [set(p.choices.values()) for p in listing] == [{KERNEL.name}] and listing.total.number == 1
    assert str(list_paths(graph, limit=1, **here).total) == f"{len(list(list_paths(graph, **here))):,}"


def test_kernels_that_were_not_compared_are_told_from_wrong_ones_and_from_missing_ones(database: Database) -> None:
    """No kernel of numpy or C computes gelu by erf: its steps are what was not compared, or is not there."""
    graph = tg.graph(tg.gelu(tg.input("x", (4, 8))))
    with pytest.raises(NoPathError) as uncompared:
        list_paths(graph, database=database, backends=("c", "numpy"), all_kernels_count=False)
    assert "gelu f32[4, 8]: what computes it was not compared with the oracle yet: numpy.add" in str(uncompared.value)
    assert "fix: tg profile compares them" in str(uncompared.value) and "without all_kernels_count=False" in str(uncompared.value)
    assert next(list_paths(graph, database=database, backends=("c", "numpy"))).error is None
    with pytest.raises(NoPathError, match=r"gelu f32\[4, 8\]: what computes it was not compared .*: torch\.gelu"):
        list_paths(graph, database=database, backends=("torch",), all_kernels_count=False)
    with pytest.raises(NoPathError, match=r"no kernel of c computes \w+ f32.* in it(.|\n)*fix: --backends c,\w+ .*computes it"):
        list_paths(graph, database=database, backends=("c",))


def test_a_kernel_that_failed_is_wrong_and_not_uncompared(database: Database) -> None:
    y = tg.reciprocal(tg.input("x", (4,), tg.f64))
    for kernel in by_op(all_kernels(("numpy",)))["reciprocal"]:
        add_row(database, kernel, signature_of(y), status="RUNTIME_ERROR")
    with pytest.raises(NoPathError, match=r"nothing that computes it is right here \(numpy\.reciprocal: RUNTIME_ERROR"):
        list_paths(tg.graph(y), database=database, backends=("numpy",))


def test_a_missing_backend_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensor_graphs.choice.request.why_missing", lambda name: "no compiler" if name == "c" else None)
    asked = Request(tg.graph({"y": SOFTMAX}), backends=("c", "numpy"))
    assert (asked.here, asked.notes) == (("numpy",), ("backend c is not available: no compiler",))


def test_typical_sizes_are_the_given_ones_or_the_geometric_middle() -> None:
    assert typical_sizes(tg.graph({"y": SOFTMAX})) == {"n": 8}
    assert typical_sizes(tg.graph({"y": SOFTMAX}), {"n": 5}) == {"n": 5}


def test_a_trace_whose_workload_is_gone_says_that_the_database_is_damaged(tmp_path: Path) -> None:
    softmax = tg.softmax(tg.input("x", (3, 8)))
    with open_database(tmp_path / "bench.db") as database:
        add_row(database, kernel_named("numpy.softmax"), signature_of(softmax))
        add_row(database, kernel_named("numpy.softmax"), signature_of(softmax), {})
    with contextlib.closing(sqlite3.connect(tmp_path / "bench.db")) as raw:
        raw.execute("PRAGMA foreign_keys = OFF")
        raw.execute("DELETE FROM workloads")
        raw.commit()
    with open_database(tmp_path / "bench.db") as database, pytest.raises(CorruptDatabase, match="workload that is not there"):
        tg.compile(tg.graph(softmax), database=database, backends=("numpy",))
