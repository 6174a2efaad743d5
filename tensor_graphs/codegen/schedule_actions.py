"""schedule_actions: the arrangement of a definition's loops as data: a schedule is a tuple of actions, replayed on its program.

    seed(definition)                    # the full schedule that the rules choose: one action for each possible choice
    replay(definition, schedule)        # the program; raises IllegalAction with the reason
    choices(definition, schedule)       # for each action: the legal alternatives for the same choice

`Again` actions apply first, while the definition is lowered. `Parts` actions then cut nests (numbered as lowered). Advice (`Tiled`,
`Grain`, `SumBlock`, …) comes last; its nest and stage numbers are those after cutting. Rules decide every choice left open. No
action changes what is computed, except for the order of sums: tests/codegen/test_schedule_actions.py checks each with interpret.py.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, TypeVar

from tensor_graphs.codegen.default_schedule import CHUNK, advised, cut_along, in_parts, part_by_rule, tile_by_rule
from tensor_graphs.codegen.loop_ir import Nest, Stage, StageProgram, across
from tensor_graphs.codegen.lower import lower
from tensor_graphs.codegen.mapping import cpu_parts
from tensor_graphs.codegen.passes import split_reduction
from tensor_graphs.codegen.pipelines import WHOLE, through
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import dims as d
from tensor_graphs.language.composite import Definition


class IllegalAction(TensorGraphsError):
    """An action that a program does not accept; the message gives the reason."""


@dataclass(frozen=True)
class Action:
    """One choice. size: the chosen value; all other fields locate the choice. sizes: the values that a search tries."""

    size: int
    sizes: ClassVar[tuple[int, ...]] = ()

    @property
    def site(self) -> tuple[Any, ...]:
        """Return the location of the choice; a schedule has at most one action for each."""
        return (type(self).__name__, *(getattr(self, f.name) for f in fields(self) if f.name != "size"))

    def __str__(self) -> str:
        where = ", ".join(f"{f.name} {getattr(self, f.name)}" for f in fields(self) if f.name != "size")
        return f"{type(self).__name__} {self.size} ({where})"


@dataclass(frozen=True)
class Again(Action):
    """Recompute (1) or keep in scratch (0) a costly value that several stages need. value: the number of that value."""

    value: int = 0
    sizes = (0, 1)

    def why_not(self, program: StageProgram) -> str | None:
        if self.value >= program.dear:
            return f"{program.dear} dear values are needed by several stages, and there is no number {self.value}"
        return None if self.size in (0, 1) else "it is 0 or 1"


@dataclass(frozen=True)
class Parts(Action):
    """Cut a nest of one reduction or scan into parallel parts of `size` elements (rows, if it reduces columns); 0: do not cut."""

    nest: int = 0
    sizes = (0, 64, 256, 1024, 1 << 12, 1 << 14, 1 << 16)

    def why_not(self, nest: Nest) -> str | None:
        if self.size == 0:
            return None
        along = cut_along(nest)
        if not along:
            why = split_reduction.why_whole(nest)
            if why is not None:
                return why
            least, most = 16, d.bounds(nest.stages[0].reduce[0].size)[1]
        elif len(along) > 1:
            return None if self.size == CHUNK else f"its parts are what its first axis counts: {CHUNK} or 0"
        else:
            least, most = 1024, d.bounds(along[0].size)[1]
        return None if least <= self.size < most else f"a part has {least} elements at least, and fewer than {most}"


@dataclass(frozen=True)
class _OfNest(Action, ABC):
    """Base of actions on one nest. nest: its number after cutting."""

    nest: int = 0
    field: ClassVar[str]

    def of(self, program: StageProgram) -> Nest:
        return _at(program.nests, self.nest, "nest")

    def taken(self, program: StageProgram) -> StageProgram:
        """Return the program with this advice."""
        own = self.of(program)
        return program.made_of(self.advised(nest) if nest is own else nest for nest in program.nests)

    @abstractmethod
    def why_not(self, program: StageProgram, nest: Nest) -> str | None:
        """Return why the nest cannot take this advice; None where it can."""

    def advised(self, nest: Nest) -> Nest:
        changed: dict[str, Any] = {self.field: self.size}
        return replace(nest, advice=replace(nest.advice, **changed))

    def read(self, nest: Nest) -> int:
        return int(getattr(nest.advice, self.field))


@dataclass(frozen=True)
class Tiled(_OfNest):
    """Walk a nest that reads along one axis and writes along another in blocks of `size` iterations along the first (0: none)."""

    sizes = (0, 16, 32, 64)
    field = "tile"

    def why_not(self, program: StageProgram, nest: Nest) -> str | None:
        if tile_by_rule(program, nest) is None:
            return "it reads and writes along one axis"
        return None if self.size in self.sizes else f"a block has one of {self.sizes} turns along what it reads"

    def advised(self, nest: Nest) -> Nest:
        return super().advised(nest) if self.size else replace(nest, tile=None)

    def read(self, nest: Nest) -> int:
        return 0 if nest.tile is None else nest.advice.tile


@dataclass(frozen=True)
class Grain(_OfNest):
    """Number of element steps that justify a part of their own for a thread."""

    sizes = (1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15, 1 << 16, 1 << 18, 1 << 20)
    field = "grain"

    def why_not(self, program: StageProgram, nest: Nest) -> str | None:
        if not cpu_parts.is_shared_out(nest):
            return "it is one turn, which one thread takes"
        return None if 1 <= self.size <= 1 << 30 else "a part has 1 to 2^30 steps"


@dataclass(frozen=True)
class _OfStage(Action, ABC):
    """Base of actions on one stage. nest, stage: its numbers after cutting."""

    nest: int = 0
    stage: int = 0
    field: ClassVar[str]
    most: ClassVar[int]

    def of(self, program: StageProgram) -> Stage:
        return _at(_at(program.nests, self.nest, "nest").stages, self.stage, "stage")

    def taken(self, program: StageProgram) -> StageProgram:
        """Return the program with this advice."""
        own = self.of(program)
        return program.made_of(nest.mapped(lambda s: [self.advised(s) if s is own else s]) if i == self.nest else nest
                               for i, nest in enumerate(program.nests))

    @abstractmethod
    def unfit(self, stage: Stage) -> str | None:
        """Return why the advice does not apply to this kind of stage; None where it does."""

    def why_not(self, stage: Stage) -> str | None:
        why = self.unfit(stage)
        return why if why is not None or 1 <= self.size <= self.most else f"it is 1 to {self.most}"

    def advised(self, stage: Stage) -> Stage:
        return replace(stage, advice=replace(stage.advice, **{self.field: self.size}))

    def read(self, stage: Stage) -> int:
        return int(getattr(stage.advice, self.field))


@dataclass(frozen=True)
class SumBlock(_OfStage):
    """Block length: elements that a contiguous sum of floats adds before it continues in f64, or that a scan computes before it
    accumulates them."""

    sizes = (128, 256, 512, 1024)
    field, most = "block", 1024                                     # more is less accurate than what is written by hand

    def unfit(self, stage: Stage) -> str | None:
        if stage.scan is not None:
            return None if stage.scan.along == stage.axes[-1] else "its scan does not run along memory"
        blocks = stage.monoid == "sum" and stage.value.dtype.is_float and not across(stage)
        return None if blocks else "it is no sum of floats along memory"


@dataclass(frozen=True)
class Accumulators(_OfStage):
    """Number of separate vectors of accumulators in a contiguous reduction, so that no addition waits for the previous one."""

    sizes = (1, 2, 4)
    field, most = "lanes", 8

    def unfit(self, stage: Stage) -> str | None:
        return None if stage.reduce and not across(stage) else "it is no reduction along memory"


@dataclass(frozen=True)
class Unroll(_OfStage):
    """Iterations by which the compiler unrolls the innermost loop of a stage that stores."""

    sizes = (1, 2, 4, 8)
    field, most = "unroll", 64

    def unfit(self, stage: Stage) -> str | None:
        return None if stage.monoid is None and stage.axes else "it has no loop that stores"


@dataclass(frozen=True)
class Columns(_OfStage):
    """Number of columns that a strided reduction or scan computes at the same time."""

    sizes = (64, 256, 512, 1024)
    field, most = "columns", 4096

    def unfit(self, stage: Stage) -> str | None:
        scans_columns = stage.scan is not None and stage.scan.along != stage.axes[-1]
        return None if scans_columns or across(stage) else "it does not run across memory"


@dataclass(frozen=True)
class NarrowRows(_OfStage):
    """Rows that a strided sum of f32 adds in f32 before it continues in f64."""

    sizes = (32, 64, 128)
    field, most = "rows", 512

    def unfit(self, stage: Stage) -> str | None:
        narrow = stage.monoid == "sum" and stage.value.dtype.name == "f32"
        return None if narrow and across(stage) else "it is no sum of f32 across memory"


Schedule = tuple[Action, ...]
Thing = TypeVar("Thing")

OF_STAGE = (SumBlock, Accumulators, Unroll, Columns, NarrowRows)
ACTIONS: Mapping[str, type[Action]] = {
    kind.__name__: kind for kind in (Again, Parts, Tiled, Grain, SumBlock, Accumulators, Unroll, Columns, NarrowRows)}


def to_json(schedule: Schedule) -> str:
    """Return a schedule as one line of JSON; equal schedules give equal strings."""
    return json.dumps([{"action": type(a).__name__, **asdict(a)} for a in schedule], sort_keys=True)


def from_json(text: str, kinds: Mapping[str, type[Action]] = ACTIONS) -> Schedule:
    """Return the schedule that `to_json` wrote. kinds: the actions that it may have. Raises IllegalAction."""
    def read(action: dict[str, Any]) -> Action:
        kind = kinds[action.pop("action")]
        names = {f.name for f in fields(kind) if f.type == "str"}
        values: dict[str, Any] = {k: str(v) if k in names else int(v) for k, v in action.items()}
        return kind(**values)

    try:
        return tuple(read(action) for action in json.loads(text))
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise IllegalAction(f"{text[:80]!r} is no schedule: {type(e).__name__}: {e}\n  fix: what actions.to_json writes") from e


def replay(definition: Definition, schedule: Schedule = ()) -> StageProgram:
    """Return the program of a definition as a schedule arranges it. Raises IllegalAction, NotLowered and LanguageError."""
    return _replayed(definition, schedule)[0]


def seed(definition: Definition) -> Schedule:
    """Return the full schedule that the rules choose. Raises NotLowered and LanguageError."""
    return completed(definition, ())


def completed(definition: Definition, schedule: Schedule) -> Schedule:
    """Return the schedule with every open choice filled in, in order. Raises IllegalAction, NotLowered and LanguageError."""
    program, parts = _replayed(definition, schedule)
    again = set(program.again)
    actions: list[Action] = [Again(int(i in again), i) for i in range(program.dear)]
    actions += [Parts(size, i) for i, size in enumerate(parts) if size is not None]
    for i, nest in enumerate(program.nests):
        tile = Tiled(16, i)
        if nest.tile is not None or tile.why_not(program, nest) is None:
            actions.append(replace(tile, size=tile.read(nest)))
        grain = Grain(nest.advice.grain, i)
        actions += [grain] if grain.why_not(program, nest) is None else []
        for j, stage in enumerate(nest.stages):
            actions += [replace(a, size=a.read(stage)) for kind in OF_STAGE if (a := kind(1, i, j)).unfit(stage) is None]
    return tuple(actions)


def changed(definition: Definition, schedule: Schedule, action: Action) -> Schedule:
    """Return the full schedule with `action` in place of the action at its site. If that changes the set of nests, advice that no
    longer applies is dropped. Raises IllegalAction, NotLowered and LanguageError."""
    others = tuple(a for a in schedule if a.site != action.site)
    if isinstance(action, (Again, Parts)):
        first = tuple(a for a in others if isinstance(a, Again) or (isinstance(a, Parts) and isinstance(action, Parts)))
        result = completed(definition, (*first, action))
        for a in others:
            if not isinstance(a, (Again, Parts)) and a.site in {b.site for b in result}:
                try:
                    result = completed(definition, (*(b for b in result if b.site != a.site), a))
                except IllegalAction:
                    continue                                        # of another stage that has this number now
        return result
    return completed(definition, (*others, action))


def choices(definition: Definition, schedule: Schedule) -> list[list[Action]]:
    """Return, for each action of a full schedule, the other legal actions at its site. Sites without one are left out."""
    program, _ = _replayed(definition, schedule)
    whole = through(WHOLE, lower(definition, again=program.again))
    result = []
    for a in schedule:
        others = [replace(a, size=size) for size in a.sizes if size != a.size]
        legal = [b for b in others if _why_not(b, whole if isinstance(b, (Again, Parts)) else program) is None]
        if legal:
            result.append(legal)
    return result


def _replayed(definition: Definition, schedule: Schedule) -> tuple[StageProgram, list[int | None]]:
    """Return the program, and the part size of each nest as lowered (None: it cannot be cut). Raises IllegalAction."""
    sites = [a.site for a in schedule]
    if len(set(sites)) < len(sites):
        raise IllegalAction(f"two actions choose the same: {max(sites, key=sites.count)}")
    again = [a for a in schedule if isinstance(a, Again)]
    program = through(WHOLE, lower(definition, again=[a.value for a in again if a.size] if again else None))
    _take(program, again)
    wanted = {a.nest: a for a in schedule if isinstance(a, Parts)}
    _take(program, wanted.values())
    sizes = [part_by_rule(nest) for nest in program.nests]
    rows: list[int | None] = [size if cut_along(nest) or split_reduction.why_whole(nest) is None else None
                               for size, nest in zip(sizes, program.nests, strict=True)]
    for i, a in wanted.items():
        sizes[i] = rows[i] = a.size
    nests: list[Nest] = []
    for i, (size, nest) in enumerate(zip(sizes, program.nests, strict=True)):
        cut = in_parts if cut_along(nest) else split_reduction.cut_columns
        pieces = cut(program, nest, size) if size else [nest]
        if size and len(pieces) == 1 and i in wanted:
            raise IllegalAction(f"{wanted[i]}: an index is more than a multiple of the axis")
        nests += pieces
    program = advised(program.made_of(nests))
    for advice in schedule:
        if isinstance(advice, (_OfNest, _OfStage)):
            _take(program, [advice])
            program = advice.taken(program)
    return program, rows


def _take(program: StageProgram, actions: Iterable[Action]) -> None:
    """Raises IllegalAction for the first action that the program does not accept."""
    for action in actions:
        why = _why_not(action, program)
        if why is not None:
            raise IllegalAction(f"{action}: {why}")


def _why_not(action: Action, program: StageProgram) -> str | None:
    try:
        if isinstance(action, Parts):
            return action.why_not(_at(program.nests, action.nest, "nest"))
        if isinstance(action, _OfNest):
            return action.why_not(program, action.of(program))
        if isinstance(action, _OfStage):
            return action.why_not(action.of(program))
        assert isinstance(action, Again)
        return action.why_not(program)
    except IndexError as e:
        return str(e)


def _at(things: Sequence[Thing], number: int, what: str) -> Thing:
    if not 0 <= number < len(things):
        raise IndexError(f"it has {len(things)} {what}s, and no number {number}")
    return things[number]


