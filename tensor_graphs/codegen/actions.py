"""actions: how the loops of a definition are arranged, as data: a schedule is a tuple of actions, replayed on what was lowered.

    seed(definition)                    # what the rules choose, in full: one action for each thing that can be chosen
    replay(definition, schedule)        # the program; raises IllegalAction with the reason
    choices(definition, schedule)       # for each action: the others that could stand in its place

The first actions say what is lowered (`Again`), then come those that cut nests (`Parts`, by the number of a nest as lowered), then
advice (`Tiled`, `Grain`, `SumBlock`, …, by the numbers of nests and stages as cut). What is left open is as the rules have it.
None changes what is computed, but for the order of sums: interpret.py says so of each (tests/codegen/test_actions.py).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar

from tensor_graphs.codegen.arrange import CHUNK, advise, cut_along, in_parts, merged, part_by_rule, tile_by_rule
from tensor_graphs.codegen.lower import lower
from tensor_graphs.codegen.passes import split_columns
from tensor_graphs.codegen.print import c_source
from tensor_graphs.codegen.stages import Nest, Stage, StageProgram, across
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import dims as d
from tensor_graphs.language.composite import Definition


class IllegalAction(TensorGraphsError):
    """An action that a program does not take, and why."""


@dataclass(frozen=True)
class Action:
    """One choice. size: what is chosen; all other fields say where. sizes: those that a search tries."""

    size: int
    sizes: ClassVar[tuple[int, ...]] = ()

    @property
    def site(self) -> tuple[Any, ...]:
        """Site of the choice: a schedule has one action of each."""
        return (type(self).__name__, *(getattr(self, f.name) for f in fields(self) if f.name != "size"))

    def __str__(self) -> str:
        where = ", ".join(f"{f.name} {getattr(self, f.name)}" for f in fields(self) if f.name != "size")
        return f"{type(self).__name__} {self.size} ({where})"


@dataclass(frozen=True)
class Again(Action):
    """1: a dear value that several stages need is computed again by each; 0: it is kept in scratch. value: its number."""

    value: int = 0
    sizes = (0, 1)

    def why_not(self, program: StageProgram) -> str | None:
        if self.value >= program.dear:
            return f"{program.dear} dear values are needed by several stages, and there is no number {self.value}"
        return None if self.size in (0, 1) else "it is 0 or 1"


@dataclass(frozen=True)
class Parts(Action):
    """A nest of one reduction or scan in parts of `size` elements (of columns: rows), run in parallel; 0: whole."""

    nest: int = 0
    sizes = (0, 64, 256, 1024, 1 << 12, 1 << 14, 1 << 16)

    def why_not(self, nest: Nest) -> str | None:
        if self.size == 0:
            return None
        along = cut_along(nest)
        if not along:
            why = split_columns.why_whole(nest)
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
    """nest: the number of a nest, as cut."""

    nest: int = 0
    field: ClassVar[str]

    def of(self, program: StageProgram) -> Nest:
        return _at(program.nests, self.nest, "nest")

    @abstractmethod
    def why_not(self, program: StageProgram, nest: Nest) -> str | None:
        """Why the nest cannot be advised so; None where it can."""

    def advise(self, nest: Nest) -> None:
        changed: dict[str, Any] = {self.field: self.size}
        nest.advice = replace(nest.advice, **changed)

    def read(self, nest: Nest) -> int:
        return int(getattr(nest.advice, self.field))


@dataclass(frozen=True)
class Tiled(_OfNest):
    """A nest that reads along one axis and writes along another, in blocks of `size` by `size` turns; 0: not in blocks."""

    sizes = (0, 16, 32, 64)
    field = "tile"

    def why_not(self, program: StageProgram, nest: Nest) -> str | None:
        if tile_by_rule(program, nest) is None:
            return "it reads and writes along one axis"
        return None if self.size in self.sizes else f"a block has one of {self.sizes} turns each way"

    def advise(self, nest: Nest) -> None:
        if self.size == 0:
            nest.tile = None
        else:
            super().advise(nest)

    def read(self, nest: Nest) -> int:
        return 0 if nest.tile is None else nest.advice.tile


@dataclass(frozen=True)
class Grain(_OfNest):
    """Element steps that are a part of their own for a thread."""

    sizes = (1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15, 1 << 16, 1 << 18, 1 << 20)
    field = "grain"

    def why_not(self, program: StageProgram, nest: Nest) -> str | None:
        if not c_source.is_shared_out(nest):
            return "it is one turn, which one thread takes"
        return None if 1 <= self.size <= 1 << 30 else "a part has 1 to 2^30 steps"


@dataclass(frozen=True)
class _OfStage(Action, ABC):
    """nest, stage: numbers, as cut."""

    nest: int = 0
    stage: int = 0
    field: ClassVar[str]
    most: ClassVar[int]

    def of(self, program: StageProgram) -> Stage:
        return _at(_at(program.nests, self.nest, "nest").stages, self.stage, "stage")

    @abstractmethod
    def unfit(self, stage: Stage) -> str | None:
        """Why it is no stage to be advised so."""

    def why_not(self, stage: Stage) -> str | None:
        why = self.unfit(stage)
        return why if why is not None or 1 <= self.size <= self.most else f"it is 1 to {self.most}"

    def advise(self, stage: Stage) -> None:
        stage.advice = replace(stage.advice, **{self.field: self.size})

    def read(self, stage: Stage) -> int:
        return int(getattr(stage.advice, self.field))


@dataclass(frozen=True)
class SumBlock(_OfStage):
    """Elements that a sum of floats along memory adds before it goes on in f64, or that a scan computes before it runs over
    them."""

    sizes = (128, 256, 512, 1024)
    field, most = "block", 1024                                     # more is less accurate than what is written by hand

    def unfit(self, stage: Stage) -> str | None:
        if stage.scan is not None:
            return None if stage.scan.axis is stage.axes[-1] else "its scan does not run along memory"
        blocks = stage.monoid == "sum" and stage.value.dtype.is_float and not across(stage)
        return None if blocks else "it is no sum of floats along memory"


@dataclass(frozen=True)
class Accumulators(_OfStage):
    """Accumulators of a reduction along memory, each a vector of its own, so that none waits for the one before."""

    sizes = (1, 2, 4)
    field, most = "lanes", 8

    def unfit(self, stage: Stage) -> str | None:
        return None if stage.reduce and not across(stage) else "it is no reduction along memory"


@dataclass(frozen=True)
class Unroll(_OfStage):
    """Turns of the innermost loop of a stage that stores, written out by the compiler."""

    sizes = (1, 2, 4, 8)
    field, most = "unroll", 64

    def unfit(self, stage: Stage) -> str | None:
        return None if stage.monoid is None and stage.axes else "it has no loop that stores"


@dataclass(frozen=True)
class Columns(_OfStage):
    """Columns that a reduction or scan across memory computes at the same time."""

    sizes = (64, 256, 512, 1024)
    field, most = "columns", 4096

    def unfit(self, stage: Stage) -> str | None:
        scans_columns = stage.scan is not None and stage.scan.axis is not stage.axes[-1]
        return None if scans_columns or across(stage) else "it does not run across memory"


@dataclass(frozen=True)
class NarrowRows(_OfStage):
    """Rows that a sum of f32 across memory adds before it goes on in f64."""

    sizes = (32, 64, 128)
    field, most = "rows", 512

    def unfit(self, stage: Stage) -> str | None:
        narrow = stage.monoid == "sum" and stage.value.dtype.name == "f32"
        return None if narrow and across(stage) else "it is no sum of f32 across memory"


Schedule = tuple[Action, ...]

OF_STAGE = (SumBlock, Accumulators, Unroll, Columns, NarrowRows)
ACTIONS: Mapping[str, Callable[..., Action]] = {
    kind.__name__: kind for kind in (Again, Parts, Tiled, Grain, SumBlock, Accumulators, Unroll, Columns, NarrowRows)}


def to_json(schedule: Schedule) -> str:
    """One line; equal schedules have equal texts."""
    return json.dumps([{"action": type(a).__name__, **asdict(a)} for a in schedule], sort_keys=True)


def from_json(text: str) -> Schedule:
    """Return the schedule that `to_json` wrote. Raises IllegalAction."""
    try:
        return tuple(ACTIONS[action.pop("action")](**{k: int(v) for k, v in action.items()}) for action in json.loads(text))
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise IllegalAction(f"{text[:80]!r} is no schedule: {type(e).__name__}: {e}\n  fix: what actions.to_json writes") from e


def replay(definition: Definition, schedule: Schedule = ()) -> StageProgram:
    """The program of a definition as a schedule arranges it. Raises IllegalAction, NotLowered and LanguageError."""
    return _replayed(definition, schedule)[0]


def seed(definition: Definition) -> Schedule:
    """Return the full schedule that the rules choose. Raises NotLowered and LanguageError."""
    return completed(definition, ())


def completed(definition: Definition, schedule: Schedule) -> Schedule:
    """Return the schedule with all open choices made, in order. Raises IllegalAction, NotLowered and LanguageError."""
    program, parts = _replayed(definition, schedule)
    again = set(program.again)
    actions: list[Action] = [Again(int(i in again), i) for i in range(program.dear)]
    actions += [Parts(size, i) for i, size in enumerate(parts) if size is not None]
    for i, nest in enumerate(program.nests):
        tile = Tiled(64, i)
        if nest.tile is not None or tile.why_not(program, nest) is None:
            actions.append(replace(tile, size=tile.read(nest)))
        grain = Grain(nest.advice.grain, i)
        actions += [grain] if grain.why_not(program, nest) is None else []
        for j, stage in enumerate(nest.stages):
            actions += [replace(a, size=a.read(stage)) for kind in OF_STAGE if (a := kind(1, i, j)).unfit(stage) is None]
    return tuple(actions)


def changed(definition: Definition, schedule: Schedule, action: Action) -> Schedule:
    """Return the full schedule with an action in place of the one of its site. If it changes which nests there are, advice that no
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
    """Return, for each action of a full schedule, the other legal ones of its site; sites without another one are left out."""
    program, _ = _replayed(definition, schedule)
    whole = merged(lower(definition, again=program.again))
    result = []
    for a in schedule:
        others = [replace(a, size=size) for size in a.sizes if size != a.size]
        legal = [b for b in others if _why_not(b, whole if isinstance(b, (Again, Parts)) else program) is None]
        if legal:
            result.append(legal)
    return result


def _replayed(definition: Definition, schedule: Schedule) -> tuple[StageProgram, list[int | None]]:
    """Return the program, and how each nest as lowered was cut (None: it cannot be). Raises IllegalAction."""
    sites = [a.site for a in schedule]
    if len(set(sites)) < len(sites):
        raise IllegalAction(f"two actions choose the same: {max(sites, key=sites.count)}")
    again = [a for a in schedule if isinstance(a, Again)]
    program = merged(lower(definition, again=[a.value for a in again if a.size] if again else None))
    _take(program, again)
    wanted = {a.nest: a for a in schedule if isinstance(a, Parts)}
    _take(program, wanted.values())
    sizes = [part_by_rule(nest) for nest in program.nests]
    rows: list[int | None] = [size if cut_along(nest) or split_columns.why_whole(nest) is None else None
                               for size, nest in zip(sizes, program.nests, strict=True)]
    for i, a in wanted.items():
        sizes[i] = rows[i] = a.size
    nests: list[Nest] = []
    for i, (size, nest) in enumerate(zip(sizes, program.nests, strict=True)):
        cut = in_parts if cut_along(nest) else split_columns.cut
        pieces = cut(program, nest, size) if size else [nest]
        if size and len(pieces) == 1 and i in wanted:
            raise IllegalAction(f"{wanted[i]}: an index is more than a multiple of the axis")
        nests += pieces
    program.nests = nests
    advise(program)
    for advice in schedule:
        if isinstance(advice, (_OfNest, _OfStage)):
            _take(program, [advice])
            advice.advise(advice.of(program))                       # type: ignore[arg-type]
    return program, rows


def _take(program: StageProgram, actions: Iterable[Action]) -> None:
    """Raises IllegalAction for the first that a program does not take."""
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


def _at(things: Sequence[Any], number: int, what: str) -> Any:
    if not 0 <= number < len(things):
        raise IndexError(f"it has {len(things)} {what}s, and no number {number}")
    return things[number]


