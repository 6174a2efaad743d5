"""profile_report: holds the result of one profiling run, as data and as text; `print(report)` shows it on one screen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tensor_graphs.measure.queue.time_left import Ahead
from tensor_graphs.paths.fit_terminal import SCREEN_LINES, fitted, wrapped

NOT_OFFERED, LEFT = "NOT OFFERED", "LEFT"
"""status of an `Answered` whose kernel does not accept its signature, and of one for which the budget did not suffice"""

MOST_FAILURES, MOST_SIZES = 8, 6
"""MOST_FAILURES: lines of a summary that name failures. MOST_SIZES: sizes named in one line"""

NOTICED = 0.5
"""seconds spent beyond a budget that a report mentions at least"""


@dataclass(frozen=True)
class Rests:
    """Share of a plan's predicted time at these sizes that comes from rows of the database, 0 to 1. asked: the caller requested the
    sizes."""

    at: Mapping[str, int]
    share: float
    asked: bool


@dataclass(frozen=True)
class Answered:
    """Result of one kernel on one signature at some sizes; `print` shows it in a line.

    status: that of its last row at these sizes; or NOT OFFERED, or LEFT (the budget ended before). seconds: of a call. rival: the
    fastest other kernel timed at these sizes that passed, with its seconds; alone: why there is none. known: it had a row before.
    """

    kernel: str
    signature: str
    at: Mapping[str, int]
    status: str
    seconds: float | None = None
    error: float | None = None
    why: str = ""
    rival: tuple[str, float] | None = None
    known: bool = False
    alone: str = ""

    @property
    def ratio(self) -> float | None:
        """Return the kernel's time over its rival's, below 1 if it is faster; None where one of them has no time."""
        return None if self.seconds is None or self.rival is None or not self.rival[1] else self.seconds / self.rival[1]

    def __str__(self) -> str:
        took = "" if self.seconds is None else f"{self.seconds * 1e6:10.1f} µs"
        relative = "" if self.seconds is None else self.alone
        if self.ratio is not None and self.rival is not None:
            relative = f"{self.ratio:.3g} × the time of {self.rival[0]}, {self.rival[1] * 1e6:.1f} µs"
        error = "" if self.error is None else f"error {self.error:.1e}"
        sizes = f" at {sizes_in_words(self.at)}" if self.at else ""
        words = [f"{self.status:11s} {self.kernel:20s} {took:>13s}", relative, error, f"{self.signature}{sizes}", self.why,
                "known already" if self.known else ""]
        return "  ".join(filter(None, words))


@dataclass(frozen=True)
class Walked:
    """Result for one path through the entire graph. predicted: its cost when it was listed [s]; seconds: of a run, None if it was
    not run; beside: ratio of that to the first listed path in the same runs. status: RAN, LEFT, REFUSED (one of its kernels is
    wrong or beyond the tolerance) or FAILED, with `why`. known: it was measured before. written_out: it is the path in which most
    ops run by definition. share: of its steps' time that was measured within runs of paths, `steps` seconds in all."""

    path: str
    at: Mapping[str, int]
    predicted: float
    status: str
    seconds: float | None = None
    beside: float | None = None
    why: str = ""
    known: bool = False
    written_out: bool = False
    share: float = 0.0
    steps: float = 0.0

    def __str__(self) -> str:
        took = self.status if self.seconds is None else f"{self.seconds * 1e6:.1f} µs"
        relative = "" if self.beside is None else f"{self.beside:.3g} × the first"
        words = [f"{self.path} {took:>14s}", f"predicted {self.predicted * 1e6:10.1f} µs", f"{self.share:4.0%} of it in place",
                 relative, "written out" if self.written_out else "", "known already" if self.known else "", self.why]
        return "  ".join(filter(None, words))


@dataclass(frozen=True)
class TunedPart:
    """Result of a search for a schedule. kernel: the winner, or the one of the rules (the seed) if none was faster. status: the
    judge's, SEED if none was faster, LEFT if the time ended before. ratio: the winner's time ÷ the seed's, in pairs. looked: number
    of tried schedules. actions: differences of the winner from the seed."""

    signature: str
    at: Mapping[str, int]
    kernel: str
    status: str
    ratio: float
    looked: int
    seconds: float
    strategy: str
    actions: tuple[str, ...] = ()

    def __str__(self) -> str:
        sizes = f" at {sizes_in_words(self.at)}" if self.at else ""
        tried = f"{self.looked} schedules in {self.seconds:.1f} s"
        if self.status == "SEED":
            return f"tuned  {self.signature}{sizes}: none of {tried} is faster than the rules'"
        return (f"tuned  {self.signature}{sizes}: {self.kernel} {self.status}, {self.ratio:.2f} × the rules' time, of {tried}: "
                f"{'; '.join(self.actions)}")


@dataclass
class ProfileReport:
    """Result of one profiling run.

    again: questions measured although they had a row. left: questions that the budget left open; arisen: of these, those that
    became worthwhile through the results. statuses: number of questions per status. deployed: steps measured in place in runs of
    paths; paths: paths run as a whole, interleaved. unused: inputs with given values that no measured op reads directly. Parts of
    `seconds`: device_seconds for the device's constants (once a month), search_seconds for finding what to measure and starting the
    worker (neither counts against the budget), over_seconds beyond it. ahead: the estimate before. rests: measured shares of the
    plan's time, requested sizes first; may_save: share of the plan's time, at these sizes, that open questions may save. Where
    single kernels were requested: verdicts, one by one (a failure on a signature once for all sizes); failed_at: (kernel,
    signature) -> number of sizes at which it fails; sizes; unsized: dims without a given size, whose `sizes` are those at which the
    graph's cost is known. tuned: parts whose schedules were searched. walked: results of entire paths, where requested, in listed
    order."""

    measured: int = 0
    again: int = 0
    already_known: int = 0
    failed: int = 0
    left: int = 0
    arisen: int = 0
    seconds: float = 0.0
    statuses: dict[str, int] = field(default_factory=dict)
    interrupted: bool = False
    deployed: int = 0
    paths: int = 0
    unused: tuple[str, ...] = ()
    device_seconds: float = 0.0
    search_seconds: float = 0.0
    over_seconds: float = 0.0
    ahead: Ahead = field(default_factory=Ahead)
    rests: tuple[Rests, ...] = ()
    may_save: float = 0.0
    verdicts: list[Answered] = field(default_factory=list)
    failed_at: dict[tuple[str, str], int] = field(default_factory=dict)
    sizes: tuple[Mapping[str, int], ...] = ()
    unsized: tuple[str, ...] = ()
    tuned: list[TunedPart] = field(default_factory=list)
    walked: list[Walked] = field(default_factory=list)

    def __str__(self) -> str:
        ended = ["interrupted (Ctrl-C); the same call goes on from there"] if self.interrupted else []
        verdicts, lines = [str(v) for v in self.verdicts], [*self.summary(), *ended]
        whole = wrapped([*verdicts, *lines])                        # of few verdicts, each to its end, where the reason is
        return "\n".join(whole) if len(whole) <= SCREEN_LINES else fitted([*verdicts, *lines], "verdicts", keep=len(lines))

    def counts(self) -> str:
        """Return a phrase with the numbers of questions by result, and the seconds."""
        repeated = f" ({self.again} of these again)" if self.again else ""
        whole = f"{self.paths} paths measured as a whole, " if self.paths else ""
        arisen = f" ({self.arisen} of these new: what was measured makes other kernels worth it)" if self.arisen else ""
        what = " paths" if self.walked else ""
        left = "what is left was not counted" if self.interrupted and not self.left else f"{self.left} left{arisen}"
        return (f"{self.measured}{what} measured{repeated}, {self.already_known} known already, {self.failed} failed, "
                f"{self.deployed} steps measured in place, {whole}{left} in {self.seconds:.1f} s")

    def summary(self, call: str = "call", at: Callable[[Mapping[str, int]], str] = "at={}".format) -> list[str]:
        """Return lines: what was done and found, and what a repeated call would do. at: formats sizes as an argument."""
        unused = (f"{name}: no measured op reads it directly, so its values were of no use" for name in self.unused)
        opening = (*map(str, self.tuned), *self._paths(), *self._failures(), self._sizes(at))
        closing = (*opening, rests_on(self.rests), what_is_left(self, call), *unused)
        return [self.counts(), *filter(None, closing), *filter(None, [self._beside_budget()])]

    def _beside_budget(self) -> str:
        """Return a phrase with what a profile of an entire graph took beyond its budget, except parts under NOTICED seconds."""
        if self.verdicts or self.walked:
            return ""
        parts = ((self.device_seconds, "measuring the device, which is done once a month"),
                 (self.search_seconds, "finding out what to measure"),
                 (self.over_seconds, "comparing and timing the plan's kernels beyond it"))
        longer = [f"{seconds:.1f} s {what}" for seconds, what in parts if seconds >= NOTICED]
        return f"beside the budget: {'; '.join(longer)}" if longer else ""

    @property
    def walked_share(self) -> float:
        """Share of the time of the steps of all listed paths that was measured in place, 0 to 1."""
        total = sum(w.steps for w in self.walked)
        return sum(w.steps * w.share for w in self.walked) / total if total else 1.0

    def _paths(self) -> list[str]:
        """Return lines of the report: for each set of sizes its paths, then the share of all paths that was run, and the share of
        their steps' time that was measured."""
        out = []
        for at in {sizes_in_words(w.at): None for w in self.walked}:
            here = [w for w in self.walked if sizes_in_words(w.at) == at]
            out += [f"at {at}:"] if at else []
            out += [f"{i:4d}  {w}" for i, w in enumerate(here, 1)]
        if self.walked:
            ran = sum(w.seconds is not None for w in self.walked)
            out.append(f"covered: {ran} of {len(self.walked)} paths ({ran / len(self.walked):.0%}), "
                       f"{share_of(self.walked_share)} of the time of their steps")
        return out

    def _failures(self) -> list[str]:
        """Return lines that name the kernels which fail at several sizes, with the number of sizes and the reason."""
        why = {(v.kernel, v.signature): f"{v.status}{': ' if v.why else ''}{v.why}" for v in self.verdicts}
        lines = [f"failed at {n} sizes: {kernel} on {signature}: {why.get((kernel, signature), '')}"
                for (kernel, signature), n in self.failed_at.items() if n > 1]           # of one size the verdict says all of it
        more = len(lines) - MOST_FAILURES
        return [*lines[:MOST_FAILURES], *([f"… {more} more that fail"] if more > 0 else [])]

    def _sizes(self, at: Callable[[Mapping[str, int]], str]) -> str:
        """Return a sentence: the sizes chosen for single kernels where the caller gave none, and how to request one."""
        if not self.sizes or not self.unsized:
            return ""
        named = [sizes_in_words(size) for size in self.sizes]
        many = f"; and {len(named) - MOST_SIZES} more" if len(named) > MOST_SIZES else ""
        middle = self.sizes[len(named) // 2]
        return (f"no size was given of {', '.join(self.unsized)}, so that {'; '.join(named[:MOST_SIZES])}{many} "
                f"{'was' if len(named) == 1 else 'were'} asked about; {at({n: middle[n] for n in self.unsized})} asks for one")


def sizes_in_words(sizes: Mapping[str, int]) -> str:
    """Return sizes as a phrase.
    >>> sizes_in_words({"n": 1, "p": 256})
    'n=1, p=256'
    """
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def rests_on(rests: Sequence[Rests]) -> str:
    """Return a sentence with the measured share of the plan's time, requested sizes first; "" where unknown."""
    shares = [" at ".join(filter(None, (share_of(r.share), sizes_in_words(r.at)))) for r in rests]
    asked = [words for words, r in zip(shares, rests, strict=True) if r.asked]
    others = [words for words, r in zip(shares, rests, strict=True) if not r.asked]
    if not asked:
        return ""
    return f"measured of the plan's time: {', '.join(asked)}" + (f" (not asked for: {', '.join(others)})" if others else "")


def share_of(share: float) -> str:
    """Return the share in whole percent; 100 % only if it is exactly 1."""
    return f"{min(99, round(share * 100)) if share < 1 else 100} %"


def what_is_left(report: ProfileReport, call: str = "call") -> str:
    """Return a sentence about what a repeated call would measure, and what that may save; "" where nothing is left."""
    if not report.left or report.interrupted:
        return ""
    if report.walked:
        return f"{report.left} paths left: the same {call} goes on with them"
    if report.verdicts:
        return f"{report.left} left: the same {call} goes on with them"
    more = f"the same {call} goes on with the {report.left} kernel times that are left"
    sizes = next((sizes_in_words(r.at) for r in report.rests if r.asked), "")
    there = f" at {sizes}" if sizes else ""
    return more + (f", which may save up to {share_of(report.may_save)} of the plan's time{there}" if report.may_save else "")
