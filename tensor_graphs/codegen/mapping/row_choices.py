"""row_choices: what is decided about nests whose rows are shared by threads (rows.py): packs, threads of a row, rows of a block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tensor_graphs.codegen.loop_ir import Axis, Stage, Top, parallel
from tensor_graphs.codegen.mapping import running
from tensor_graphs.codegen.mapping.choices import NestChoices, why_no_block
from tensor_graphs.codegen.mapping.nest_mapper import NestMapper
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim

HELD, HELD_READ = 4, 8
"""packs of a row per thread where there are enough iterations to fill the device: usually, and where a row is only reduced"""

SHORT_LIST = 8
"""elements of a list up to which a thread takes several packs; the text of each element is as long as the list"""

HELD_PACKS = 8
"""most packs of a row in registers of a thread"""

SHORT = 256
"""packs of a row up to which each thread takes a single pack, where there may be few iterations"""

BLOCKS, RESIDENT = 4, 8
"""blocks of a multiprocessor that fill it, and most blocks of one that have rows in scratch or prefetch before they wait"""


class RowChoices(NestMapper):
    """The choices of a form whose threads share rows."""

    def along(self) -> tuple[dict[int, tuple[Axis, ...]], list[int]]:
        """Return the axes over which the loop of a stage runs, by the stage's index, and the stages that have packs of one size."""
        stages = self.nest.stages
        inner = {k: () if s.scan is None and d.product(a.size for a in s.axes) == 1 else s.axes for k, s in enumerate(stages)}
        along = {k: axes or stages[k].reduce for k, axes in inner.items() if axes or stages[k].reduce}
        return along, [k for k in along if not ((inner[k] and stages[k].reduce) or stages[k].scan)]

    def seed(self) -> NestChoices:
        return self.by_rule(d.product(a.size for a in self.nest.axes[:parallel(self.nest)]))

    def by_rule(self, turns: Dim, fixed: int = 0) -> NestChoices:
        """Return the choices of the rules for a number of iterations. fixed: threads that share one, if not 0."""
        (along, shared), stages, warp = self.along(), self.nest.stages, self.target.warp
        pack = self.pack_of([(stages[k], along[k][-1]) for k in shared])
        most = max((d.bounds(d.product(a.size for a in axes))[1] for axes in along.values()), default=1)
        packs = -(-most // pack)
        held, group = self.packs_each(turns, packs), fixed or 1
        scans = any(s.scan for s in stages)
        widest = min(running.THREADS, self.target.threads) if scans else self.widest()
        while not fixed and group < widest and group * held < packs:
            group *= 2
        rows = max(1, 4 * warp // group) if group <= warp and not fixed else 1
        return NestChoices(pack=pack, threads=group, rows=rows, held=HELD_PACKS, early=RESIDENT + 1,
                           ahead=running.TOGETHER if any(self.scan_pack(stages[k], along[k]) == 1 for k in along) else 0)

    def with_one(self, choices: NestChoices, what: str, size: int) -> NestChoices:
        threads, warp = choices.threads * choices.rows, self.target.warp
        if what == "threads":                                       # blocks stay as large, if they can
            return replace(choices, threads=size, rows=max(1, threads // size) if size <= warp else 1)
        return super().with_one(choices, what, size)

    def widest(self) -> int:
        """Return the most threads of an iteration; a thread of more would have too few registers for a long list."""
        return self.target.threads // (2 if self.has_long_lists() else 1)

    def why_not(self, choices: NestChoices) -> str | None:
        (along, shared), stages = self.along(), self.nest.stages
        if choices.threads > self.widest() or (choices.rows > 1 and choices.threads > self.target.warp):
            return "this many threads share no iteration, or only one of a block"
        return why_no_block(choices.threads * choices.rows, self.target) or self.why_no_pack(
            choices.pack, [(stages[k], along[k][-1]) for k in shared])

    def scan_pack(self, s: Stage, axes: Sequence[Axis]) -> int:
        """Return the elements of an access of a scan; 0 for what is none."""
        if s.scan is None:
            return 0
        pack = self.pack_of([(s, axes[-1])])
        return pack if pack <= d.bounds(axes[-1].size)[1] else 1

    def has_long_lists(self) -> bool:
        return any(isinstance(s.monoid, Top) and s.monoid.count > SHORT_LIST for s in self.nest.stages)

    def packs_each(self, turns: Dim, packs: int) -> int:
        """Return the packs of a row that each thread has, if there are enough."""
        if self.has_long_lists():
            return 1
        held = HELD if any(s.axes for s in self.nest.stages) else HELD_READ
        fewest, many = d.bounds(turns)
        enough = BLOCKS * self.target.units
        return held if many >= enough and (fewest >= enough or packs > SHORT) else 1
