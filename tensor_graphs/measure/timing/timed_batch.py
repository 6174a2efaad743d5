"""timed_batch: holds blocks of timed runs, as a worker claims them, and checks whether the claims can be true.

A worker reports when a block begins and ends, and its claims about the runs in between. The judge times both messages, and the
worker waits for an answer to each, so that the judge can see its waits for a processor. Seven things must hold, or the times are
IMPLAUSIBLE:

- The worker's clock counted at least SHARE of the time that the judge measured (less SLACK). This exposes a slow clock or delayed
work. A judge that waited measured too much, so one block suffices, and doubtful ones are measured again in longer blocks.
- The calls of a run took not far less than the run, except for the walk over the plan's instructions, whose cost is known from runs
without calls. This exposes a timer that was tampered with.
- The runs account for a block's time on the judge's clock, less waits and what as many empty runs took: they claim nine tenths of
it (less 50 µs and 15 % of what surrounds a run, which varies). This exposes work between runs, changed claims and a slow clock.
- The runs that count as undisturbed are not much faster than all are on the judge's clock, nor than what the worker's first thread
has worked in them, as the system counts it.
- Runs on unchanged operands are not much faster than on operands that change. This exposes remembered answers.
- Runs on operands that are entirely new take not much longer than on operands of which a few values change.
- The processor time of runs in most blocks is on average not much more than the median. This exposes a kernel that finds out later
operands, and computes in a few runs the answers to the others. Where other programs worked it decides nothing: a kernel's threads
then spin while they wait for one that was preempted.

The socket between the two takes some 0.1 ms, so a block lasts at least 10 ms."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tensor_graphs.measure.isolation.replies import End, Name, ProtocolError
from tensor_graphs.measure.timing.noise_reference import FEW_QUIET, QUIET, level_of

WARM_UP = 2
"""first runs of a block, which do not count"""

SHARE = 0.6
SLACK = 5e-3
LEAST_SECONDS = 0.01

OUTSIDE = 0.9, 5e-5, 0.15
SLACK_UNDER_LOAD = 4.0
UNTOLD = 0.5, 1e-4, 0.25
"""OUTSIDE: (share, slack [s], share of the surroundings): the runs must claim nine tenths of what the judge measured, less 50 µs
and 15 % of what surrounds a run, which varies. SLACK_UNDER_LOAD: factor of the two subtracted values where other programs worked:
with eight programs on two processors 88 % of honest blocks came within 20 µs a run, and the worst missed 290 µs. UNTOLD: half, less
100 µs and a quarter, where the waits of a thread are unknown"""

PICKED, PICKED_UNDER_LOAD, PICKED_SLACK = 3.0, 12.0, 1e-4
"""factors and seconds by which the runs that count may be faster than all runs on the judge's clock, as a few take longer than
most: three times or 100 µs; where other programs worked, for which a kernel's threads wait too, twelve times or 400 µs. They may be
three times as fast as the first thread's processor time per run, under any load"""

REMEMBERS, REMEMBERS_SLACK = 3.0, 2e-5
"""a run may be three times as fast, or by 20 µs, when its operands equal those of the previous run: caches and branches are warm"""

ANEW_SLACK = 1e-4
"""seconds by which a run may also be slower when all of its values are new: generating them empties the first-level caches"""

UNEVEN, UNEVEN_SLACK = 3.0, 2e-4
"""the mean processor time of a block's runs may be three times their median, or 200 µs more …"""

OTHERS, OTHERS_SLACK = 0.1, 0.02
"""… or anything, where other programs worked for a tenth of the block and for 20 ms (torch next to a neighbour: five medians)"""

WALK_SHARE, WALK_SLACK, WALKS = 0.25, 5e-5, 4.0
"""a run may take a quarter, 50 µs and four (cold) walks longer than its calls; the rest counts as time of the calls"""

WALK_AT_MOST = 3.0
"""factor: a median run that takes three times as long as its calls, 50 µs and four walks more, cannot consist of these calls"""


@dataclass
class Block:
    """Block of timed runs. first: index of its first run. wall: seconds on the judge's clock; counted: on the worker's; waited:
    those of the wall seconds in which the worker's first thread or the judge waited for a processor (None: unknown); walk: seconds
    of a run without calls; others: processor seconds of other programs; worked: processor seconds of the worker's first thread (0:
    unknown); helpers: seconds for which its other threads waited. Per run: whole: seconds of the run; calls: of its calls; busy:
    processor seconds of all threads; switches: times that a thread was preempted, or saw another program running; waits: of the
    first thread; reference: seconds of the reference stream before it."""

    name: Name
    first: int
    wall: float
    counted: float
    walk: float
    whole: Sequence[float] = ()
    calls: Sequence[float] = ()
    busy: Sequence[float] = ()
    switches: Sequence[float] = ()
    waits: Sequence[float] = ()
    reference: Sequence[float] = ()
    others: float = 0.0
    waited: float | None = None
    worked: float = 0.0
    helpers: float = 0.0

    @staticmethod
    def of(mark: End, wall: float, others: float, waited: float | None = None, worked: float = 0.0, helpers: float = 0.0) -> Block:
        """Return the block that a worker claims. Raises ProtocolError where it has too few runs."""
        if len(mark.whole) <= WARM_UP:
            raise ProtocolError(f"a block {mark.name!r} of {len(mark.whole)} runs")
        return Block(**vars(mark), wall=wall, others=others, waited=waited, worked=worked, helpers=helpers)

    def seconds(self) -> list[float]:
        """Return the seconds of each run: of its calls, or more if it took longer than they and a walk explain."""
        return [max(calls, (whole - WALKS * self.walk - WALK_SLACK) / (1 + WALK_SHARE))
                for calls, whole in zip(self.calls, self.whole, strict=True)]

    def quiet(self, level: float, bound: float) -> list[bool]:
        """Return for each run whether nothing disturbed it: the reference stream before and after it took at most bound · level,
        and no other program ran."""
        calm = [reference <= bound * level for reference in self.reference]
        return [a and b and not switches for a, b, switches in zip(calm, [*calm[1:], True], self.switches, strict=True)]

    def present(self) -> float:
        """Return the seconds on the judge's clock without waits for a processor, but at least the processor seconds of the worker's
        first thread: the judge may have waited at the same time."""
        return max(self.wall - (self.waited or 0.0), self.worked)

    def under_load(self) -> bool:
        """Return whether other programs worked during the block."""
        return self.others > max(OTHERS * self.wall, OTHERS_SLACK)

    def late(self) -> str:
        """Return a message if much more time passed on the judge's clock than on the worker's; "" if not."""
        if self.counted >= SHARE * self.wall - SLACK:
            return ""
        return (f"a block of {len(self.whole)} {self.name} runs took {self.wall * 1e3:.3g} ms on the judge's clock, "
                f"and {self.counted * 1e3:.3g} ms as the worker counts")

    def contradicts_itself(self) -> str:
        """Return a message if the claims contradict each other; "" if they do not."""
        whole, calls = statistics.median(self.whole), statistics.median(self.calls)
        if not whole <= calls * WALK_AT_MOST + WALKS * self.walk + WALK_SLACK:
            return (f"{self.name} runs took {whole * 1e6:.3g} µs, the calls in them {calls * 1e6:.3g} µs as claimed, and the walk "
                    f"from one to the next takes {self.walk * 1e6:.3g} µs")
        if sum(self.whole) > self.counted + 1e-6 or min(self.calls) < 0 or min(self.whole) < 0:
            return f"the {self.name} runs of a block took longer than the block"
        return ""


def surrounds(nothing: Block) -> float:
    """Return the seconds around a run that it does not claim, from runs of nothing, whose median has no waits."""
    return max(0.0, nothing.present() / len(nothing.whole) - statistics.median(nothing.whole))


def around_worked(nothing: Block) -> float:
    """Return the processor seconds of the worker's first thread around a run."""
    return max(0.0, nothing.worked / len(nothing.whole) - statistics.median(nothing.whole))


def picked(cold: Sequence[Block], nothing: Block, copied: bool = False) -> str:
    """Return a message if the runs that count are much faster than all runs on the judge's clock; "" if not. copied: a run copies
    data to another device and back, even a run of nothing; this time surrounds its calls, and varies by more than a short call
    takes. The check is needed as a worker claims which runs were undisturbed: if only few runs are fast, or the slow ones come
    first, the sum still agrees."""
    runs = sum(len(b.whole) for b in cold)
    around = surrounds(nothing) + (statistics.median(nothing.whole) if copied else 0.0)
    outside = sum(b.present() for b in cold) / runs - around
    runs_claimed = [(seconds, calm) for b in cold
            for seconds, calm in list(zip(b.seconds(), b.quiet(level_of(b.reference), QUIET), strict=True))[WARM_UP:]]
    counting = [seconds for seconds, calm in runs_claimed if calm]
    claimed = statistics.median(counting if len(counting) >= FEW_QUIET else [seconds for seconds, _ in runs_claimed])
    disturbed = any(b.under_load() or b.waited is None for b in cold)
    slack = PICKED_SLACK * (SLACK_UNDER_LOAD if disturbed else 1.0) + (OUTSIDE[2] * around if copied else 0.0)
    # less the waits of its other threads: its first one may wait in a loop for them, as for a device, whose waits nobody tells
    worked = 0.0 if copied else sum(b.worked - b.helpers for b in cold) / runs - around_worked(nothing)
    for seen, times, where in ((outside, PICKED_UNDER_LOAD if disturbed else PICKED, "on the judge's clock"),
                               (worked, PICKED, "of the processor's time")):
        if claimed * times < seen and seen - claimed > slack:
            return (f"the cold runs that count take {claimed * 1e6:.3g} µs as claimed, and all of them {seen * 1e6:.3g} µs "
                    f"{where}, without what surrounds a run")
    return ""


def between(block: Block, nothing: Block) -> str:
    """Return a message where a block took longer on the judge's clock than its runs claim, else "". nothing: a block of runs
    without calls, whose time is subtracted."""
    around = surrounds(nothing)
    outside = block.present() / len(block.whole) - around
    has_waits = block.waited is not None
    claimed = statistics.fmean(max(0.0, min(whole, calls + WALKS * block.walk + WALK_SLACK) - (wait if has_waits else 0.0))
                               for whole, calls, wait in zip(block.whole, block.calls, block.waits, strict=True))
    share, slack, part = OUTSIDE if has_waits else UNTOLD
    if claimed >= share * outside - (slack + part * around) * (SLACK_UNDER_LOAD if has_waits and block.under_load() else 1.0):
        return ""
    return (f"{len(block.whole)} {block.name} runs took {outside * 1e6:.3g} µs each on the judge's clock, without what surrounds a "
            f"run, and {claimed * 1e6:.3g} µs as claimed, both without waits for a processor")


def uneven(block: Block) -> str:
    """Return a message if the process worked much more in a few runs than in most; "" if it did not."""
    mean, middle = statistics.fmean(block.busy), statistics.median(block.busy)
    if block.under_load():
        return ""
    if mean <= UNEVEN * middle or mean - middle <= UNEVEN_SLACK:
        return ""
    return (f"in {len(block.whole)} {block.name} runs the processor worked for {mean * 1e6:.3g} µs each, and {middle * 1e6:.3g} µs "
            f"in the middle: a few did the work of others")


def remembered(hot: Block, same: Block) -> str:
    """Return a message if runs became much faster when nothing changed between them; "" if not. Of the runs with changes the fast
    ones count: hardly any answer could be remembered in them, and a busy machine slows down some or most."""
    changing, still = level_of(hot.seconds()), statistics.median(same.seconds())
    if still * REMEMBERS >= changing or changing - still <= REMEMBERS_SLACK:
        return ""
    return (f"runs on operands that change take {changing * 1e6:.3g} µs, and {still * 1e6:.3g} µs when they stay the same: answers "
            f"are remembered")


def remembered_in_part(cold: Sequence[Block], new: Block) -> str:
    """Return a message if runs with a few changed values are much faster than runs with all values changed; "" if not."""
    changing = statistics.median(s for b in cold for s in b.seconds()[WARM_UP:])
    runs = list(zip(new.seconds(), new.switches, strict=True))[WARM_UP:]
    alone = [seconds for seconds, switches in runs if not switches]
    middle = level_of if new.under_load() else statistics.median    # others only slow it down
    anew = middle(alone or [seconds for seconds, _ in runs])
    if changing * REMEMBERS >= anew or anew - changing <= ANEW_SLACK:
        return ""
    return (f"runs on operands of which a few values change take {changing * 1e6:.3g} µs, and {anew * 1e6:.3g} µs when all do: "
            f"answers are remembered in part")


def implausible(blocks: Sequence[Block], *, anew: bool, copied: bool = False) -> str:
    """Return why these blocks cannot be true; "" if they can. anew: the last block has new operands. copied: run on a device."""
    names = [b.name for b in blocks]
    if [n for n in names if n != "plain"] != ["nothing", "cold", "cold", "hot", "same", *(["new"] if anew else [])]:
        return f"the blocks of runs were {', '.join(names) or 'none'}"
    by_name = {b.name: b for b in blocks}
    nothing, hot, same = by_name["nothing"], by_name["hot"], by_name["same"]
    cold = [b for b in blocks if b.name == "cold"]
    late = [b.late() for b in blocks if b.name != "plain"]
    if all(late):
        return late[0]
    reasons = [b.contradicts_itself() for b in blocks if b.name not in ("plain", "nothing")]
    slower = [between(b, nothing) for b in cold]
    lumps = [why for b in (*cold, hot) if (why := uneven(b))]
    reasons += [slower[0] if all(slower) else "", lumps[0] if len(lumps) > 1 else "", picked(cold, nothing, copied),
              remembered(hot, same)]
    reasons += [remembered_in_part(cold, by_name["new"])] if anew else []
    return next((why for why in reasons if why), "")
