"""space: the search space of a strategy: the schedules of one signature at given sizes, and their scores, with a time limit."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tensor_graphs.codegen import schedule_actions, spec_to_loops
from tensor_graphs.codegen.compiled_libraries import code_of
from tensor_graphs.codegen.interpret import run
from tensor_graphs.codegen.loop_ir import StageProgram
from tensor_graphs.codegen.schedule_actions import Action, Again, IllegalAction, Parts, Schedule
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language import dims as d
from tensor_graphs.tuning.timing import Paired, ScheduleBench, WrongOutputs, compiled

FIRST, MORE, LAST, PLACES = 5, 12, 15, 3
"""pairs of samples: of every schedule; of one that may beat the seed; of the winner at each place in memory; number of places"""

MAY_BE = 0.97
"""score below which a schedule gets MORE pairs of samples"""

FASTER, WINS = 0.98, 0.7
"""requirements on the winner in fresh samples: its time ÷ the seed's is below the first, and its share of pairs won reaches the
second (one in two hundred equal schedules would win that share of 45 pairs); else the seed stays"""

KEPT = 0.2
"""share of the time reserved for the final test"""

SMALL = 1 << 16
"""most iterations of a program that the interpreter checks, if it is cut or lowered differently"""

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
    of `actions.seed` where `gen` cannot generate the signature."""

    def __init__(self, signature: Signature, binding: Mapping[str, int], seconds: float, first: int = FIRST) -> None:
        self.signature, self.deadline, self.first = signature, time.perf_counter() + (1.0 - KEPT) * seconds, first
        self.definition = spec_to_loops.definition_of(signature.spec)
        self.seed = schedule_actions.seed(self.definition)
        self.known_sites: dict[Schedule, list[list[Action]]] = {}
        self.looked: dict[Schedule, Looked] = {}
        self.texts: dict[str, Schedule] = {}
        self.bench = ScheduleBench(signature, binding)
        self.dims = dict(self.bench.ints)
        program = schedule_actions.replay(self.definition, self.seed)
        (why,) = compiled([program])
        if why is not None:
            raise WrongOutputs(why)
        self.run_seed = self.bench.load(program)
        self.bench.compare(self.run_seed)
        self.programs: dict[Schedule, StageProgram] = {self.seed: program}
        self.meant: list[np.ndarray] | None = None
        self.looked[self.seed] = Looked(self.seed, Paired((1.0,), (1.0,)))
        self.texts[code_of(program).symbol] = self.seed

    def sites(self, schedule: Schedule) -> list[list[Action]]:
        self._still()
        if schedule not in self.known_sites:
            self.known_sites[schedule] = schedule_actions.choices(self.definition, schedule)
        return self.known_sites[schedule]

    def changed(self, schedule: Schedule, action: Action) -> Schedule:
        self._still()
        try:
            return schedule_actions.changed(self.definition, schedule, action)
        except IllegalAction:
            return schedule

    def scores(self, schedules: Sequence[Schedule]) -> list[float]:
        self._still()
        new = [s for s in dict.fromkeys(schedules) if s not in self.looked]
        fresh = []
        for s in new:
            same = self.texts.setdefault(code_of(self.program(s)).symbol, s)
            if same != s and same in self.looked:                   # nothing of the text depends on what was chosen
                self.looked[s] = Looked(s, self.looked[same].samples)
            else:
                fresh.append(s)
        whys = compiled([self.programs[s] for s in fresh])
        for s, why in zip(fresh, whys, strict=True):
            self.looked[s] = Looked(s, None, why) if why is not None else self._look(s)
        return [self.looked[s].score for s in schedules]

    def program(self, schedule: Schedule) -> StageProgram:
        """Return the stage program of a legal schedule."""
        if schedule not in self.programs:
            self.programs[schedule] = schedule_actions.replay(self.definition, schedule)
        return self.programs[schedule]

    def better(self, one: Schedule, other: Schedule) -> bool:
        if one == other or BAD in self.scores([one, other]):
            return False
        self._still()
        pairs = self.bench.pairs(self.bench.load(self.programs[one]), self.bench.load(self.programs[other]), MORE)
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

    def elsewhere(self) -> list[ScheduleBench]:
        """Return benches with operands at PLACES other addresses, all alive, so that no two share memory."""
        return [ScheduleBench(self.signature, self.dims) for _ in range(PLACES)]

    def beside_seed(self, schedule: Schedule, benches: Sequence[ScheduleBench], rounds: int) -> list[Paired]:
        """Return interleaved samples of a schedule and of the seed on each bench."""
        own, its = self.programs[schedule], self.programs[self.seed]
        return [bench.pairs(bench.load(own), bench.load(its), rounds) for bench in benches]

    def _look(self, schedule: Schedule) -> Looked:
        self._still()
        try:
            self._interpreted(schedule)
            call = self.bench.load(self.programs[schedule])
            self.bench.compare(call)
        except WrongOutputs as e:
            return Looked(schedule, None, str(e))
        pairs = self.bench.pairs(call, self.run_seed, self.first)
        if pairs.ratio < MAY_BE:
            more = self.bench.pairs(call, self.run_seed, MORE)
            pairs = Paired((*pairs.own, *more.own), (*pairs.seed, *more.seed))
        return Looked(schedule, pairs)

    def _interpreted(self, schedule: Schedule) -> None:
        """Check a small program that is lowered or cut differently with the interpreter. Raises WrongOutputs if it differs."""
        program, seed = self.programs[schedule], self.programs[self.seed]
        if _structure(schedule) == _structure(self.seed) or self._turns(seed) > SMALL or self._turns(program) > SMALL:
            return
        operands = [x.reshape(-1) for x in self.bench.sets[0][1]]
        if self.meant is None:
            self.meant = run(seed, operands, self.dims)
        for output, meant in zip(run(program, operands, self.dims), self.meant, strict=True):
            if not np.allclose(output, meant, rtol=1e-7, atol=1e-7, equal_nan=True):
                raise WrongOutputs("the interpreter computes something else than from the rules' schedule")

    def _turns(self, program: StageProgram) -> int:
        axes = ((*n.axes[:s.level], *s.axes, *s.reduce) for n in program.nests for s in n.stages)
        return sum(int(np.prod([d.bounds(a.size)[1] for a in nest_axes], dtype=float)) for nest_axes in axes)

    def _still(self) -> None:
        if time.perf_counter() > self.deadline:
            raise TimeIsOver


def _structure(schedule: Schedule) -> tuple[Action, ...]:
    return tuple(a for a in schedule if isinstance(a, (Again, Parts)))
