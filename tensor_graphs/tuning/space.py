"""space: the search space of a strategy: the schedules of one signature at given sizes, and their scores, with a time limit."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tensor_graphs.codegen.schedule_actions import Action, IllegalAction, Schedule
from tensor_graphs.devices.device import DeviceLost
from tensor_graphs.kernels.kernel import NotLowered
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.tuning.generators import HOST, Generator, TimingBench
from tensor_graphs.tuning.timing import Paired, WrongOutputs

FIRST, MORE, LAST, PLACES = 5, 12, 15, 3
"""pairs of samples: of every schedule; of one that may beat the seed; of the winner at each place in memory; number of places"""

MAY_BE = 0.97
"""score below which a schedule gets MORE pairs of samples"""

FASTER, WINS = 0.98, 0.7
"""requirements on the winner in fresh samples: its time ÷ the seed's is below the first, and its share of pairs won reaches the
second (one in two hundred equal schedules would win that share of 45 pairs); else the seed stays"""

KEPT = 0.2
"""share of the time reserved for the final test"""

BAD = float("inf")
"""the score of a schedule that is illegal, does not compile or computes a different result"""


class TimeIsOver(Exception):
    """Signal that the time of a search is over."""


class Space(Protocol):
    """The schedules that a strategy searches. Scores: time ÷ the seed's; BAD: unusable. All but `seed` may raise TimeIsOver."""

    seed: Schedule

    def sites(self, schedule: Schedule) -> Sequence[Sequence[Action]]:
        """Return for each site of a schedule its alternative actions."""

    def changed(self, schedule: Schedule, action: Action) -> Schedule:
        """Return the schedule with this action, or the schedule unchanged where the action is illegal."""

    def scores(self, schedules: Sequence[Schedule]) -> list[float]:
        """Return the scores; each schedule is measured once."""

    def better(self, one: Schedule, other: Schedule) -> bool:
        """Return whether `one` is faster than `other`, in pairs of samples."""


@dataclass(frozen=True)
class Looked:
    """A schedule that a search has tried. samples: None if it is unusable; why: the reason."""

    schedule: Schedule
    samples: Paired | None
    why: str = ""

    @property
    def score(self) -> float:
        return BAD if self.samples is None else self.samples.ratio


class Measured:
    """The space of a signature on this machine, with measured scores. first: pairs of samples of every schedule. Raises the errors
    of `generator.seed` where the signature cannot be generated."""

    def __init__(self, signature: Signature, binding: Mapping[str, int], seconds: float, first: int = FIRST,
                 generator: Generator = HOST) -> None:
        self.signature, self.deadline, self.first = signature, time.perf_counter() + (1.0 - KEPT) * seconds, first
        self.generator, self.task = generator, generator.task(signature.spec)
        self.seed = generator.seed(self.task)
        self.known_sites: dict[Schedule, list[list[Action]]] = {}
        self.looked: dict[Schedule, Looked] = {}
        self.texts: dict[str, Schedule] = {}
        self.bench = generator.bench(signature, binding)
        self.dims = dict(self.bench.ints)
        program = generator.program(self.task, self.seed)
        (why,) = generator.compiled([program])
        if why is not None:
            raise WrongOutputs(why)
        self.run_seed = self.loaded(self.bench, program)
        self.bench.compare(self.run_seed)
        self.programs: dict[Schedule, Any] = {self.seed: program}
        self.looked[self.seed] = Looked(self.seed, Paired((1.0,), (1.0,)))
        self.texts[generator.text(program)] = self.seed
        if generator.eager:
            generator.compiled(self._neighbours())

    def _neighbours(self) -> Iterator[Any]:
        """Yield the programs of all schedules that differ from the seed by one action, while there is time."""
        with contextlib.suppress(TimeIsOver):
            for action in (action for site in self.sites(self.seed) for action in site):
                with contextlib.suppress(IllegalAction, NotLowered):
                    yield self.program(self.changed(self.seed, action))

    def sites(self, schedule: Schedule) -> list[list[Action]]:
        self._still()
        if schedule not in self.known_sites:
            self.known_sites[schedule] = self.generator.choices(self.task, schedule)
        return self.known_sites[schedule]

    def changed(self, schedule: Schedule, action: Action) -> Schedule:
        self._still()
        try:
            return self.generator.changed(self.task, schedule, action)
        except (IllegalAction, NotLowered):
            return schedule

    def scores(self, schedules: Sequence[Schedule]) -> list[float]:
        self._still()
        new = [s for s in dict.fromkeys(schedules) if s not in self.looked]
        fresh = []
        for s in new:
            try:
                text = self.generator.text(self.program(s))
            except (IllegalAction, NotLowered) as e:                # a device has no room for it
                self.looked[s] = Looked(s, None, f"it is not compiled: {e}")
                continue
            same = self.texts.setdefault(text, s)
            if same != s and same in self.looked:                   # nothing of the text depends on what was chosen
                self.looked[s] = Looked(s, self.looked[same].samples)
            else:
                fresh.append(s)
        whys = self.generator.compiled([self.programs[s] for s in fresh])
        for s, why in zip(fresh, whys, strict=True):
            self.looked[s] = Looked(s, None, why) if why is not None else self._look(s)
        return [self.looked[s].score for s in schedules]

    def program(self, schedule: Schedule) -> Any:
        """Return the program of a legal schedule. Raises IllegalAction, NotLowered."""
        if schedule not in self.programs:
            self.programs[schedule] = self.generator.program(self.task, schedule)
        return self.programs[schedule]

    def loaded(self, bench: TimingBench, program: Any) -> Any:
        """Return a compiled program as a bench runs it."""
        return bench.load(self.generator.runnable(program))

    def better(self, one: Schedule, other: Schedule) -> bool:
        if one == other or BAD in self.scores([one, other]):
            return False
        self._still()
        own, its = (self.loaded(self.bench, self.programs[schedule]) for schedule in (one, other))
        pairs = self.bench.pairs(own, its, MORE)
        return pairs.ratio < FASTER and pairs.wins >= WINS

    def winner(self) -> tuple[Schedule, Paired | None]:
        """Return the best schedule that beats the seed in fresh samples, and these samples; else (seed, None). It must also be
        faster on other operands, at several places in memory: alignment makes a short kernel some percent faster or slower, and a
        search adapts to its operands."""
        ranked = sorted((looked for looked in self.looked.values() if looked.schedule != self.seed and looked.score < 1.0),
                        key=lambda looked: looked.score)[:3]
        benches = self.elsewhere() if ranked else []
        for looked in ranked:
            paired = self.beside_seed(looked.schedule, benches, LAST)
            pairs = Paired.joined(paired)
            if pairs.ratio < FASTER and pairs.wins >= WINS and all(one.ratio < 1.0 for one in paired):
                return looked.schedule, pairs
        return self.seed, None

    def elsewhere(self) -> list[TimingBench]:
        """Return benches with operands at PLACES other addresses, all alive, so that no two share memory."""
        return [self.generator.bench(self.signature, self.dims) for _ in range(PLACES)]

    def beside_seed(self, schedule: Schedule, benches: Sequence[TimingBench], rounds: int) -> list[Paired]:
        """Return interleaved samples of a schedule and of the seed on each bench."""
        own, its = self.programs[schedule], self.programs[self.seed]
        return [bench.pairs(self.loaded(bench, own), self.loaded(bench, its), rounds) for bench in benches]

    def _look(self, schedule: Schedule) -> Looked:
        self._still()
        try:
            self.generator.interpret(self.programs[schedule], self.programs[self.seed], (schedule, self.seed), self.bench.operands,
                                     self.dims)
            call = self.loaded(self.bench, self.programs[schedule])
            self.bench.compare(call)
        except WrongOutputs as e:
            return Looked(schedule, None, str(e))
        except DeviceLost as e:                                     # nothing can be timed in this process any more
            self.looked[schedule] = Looked(schedule, None, f"the device was lost: {e}")
            raise
        pairs = self.bench.pairs(call, self.run_seed, self.first)
        if pairs.ratio < MAY_BE:
            more = self.bench.pairs(call, self.run_seed, MORE)
            pairs = Paired((*pairs.own, *more.own), (*pairs.seed, *more.seed))
        return Looked(schedule, pairs)

    def _still(self) -> None:
        if time.perf_counter() > self.deadline:
            raise TimeIsOver

