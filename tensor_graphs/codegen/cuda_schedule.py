"""cuda_schedule: the arrangement of a definition's GPU kernels as data, as schedule_actions.py has it for C.

`Again` actions apply first, while the definition is lowered. `PartsOf` actions cut reductions and scans, named by what they
compute. `NestNumber` actions are last: each replaces one number by which the form of a nest maps it (mapping/choices.py); nests are
counted after cutting. Rules decide every choice left open. What a target has no room for is refused before a compiler sees it
(`why_unfit`). No action changes what is computed, except for the order of sums: tests/codegen/test_cuda_schedule.py checks random
schedules with the loop interpreter, which reports races, and with emulated texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from tensor_graphs.codegen import spec_to_loops
from tensor_graphs.codegen.default_schedule import PartSize
from tensor_graphs.codegen.loop_ir import StageProgram, computed_in
from tensor_graphs.codegen.loop_program import LoopKernel, LoopProgram, shared_places
from tensor_graphs.codegen.map_loops import forms, map_loops
from tensor_graphs.codegen.mapping.choices import SIZES, NestChoices
from tensor_graphs.codegen.mapping.nest_mapper import NestMapper
from tensor_graphs.codegen.print.cuda_program import cut_program
from tensor_graphs.codegen.schedule_actions import Action, Again, IllegalAction, Schedule
from tensor_graphs.devices.target import HOPPER, Target
from tensor_graphs.kernels.kernel import Spec
from tensor_graphs.language import dims as d
from tensor_graphs.language.composite import Definition

COUNTS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""the numbers of parts that a search tries"""

LEAST_PART = 16
"""least elements of a part"""


@dataclass(frozen=True)
class KernelTask:
    """A definition for which kernels are generated."""

    definition: Definition
    target: Target = HOPPER


@dataclass(frozen=True)
class PartsOf(Action):
    """Cut a reduction or a scan into parts of `size` elements (rows, if it reduces columns); 0: do not cut. name: what it
    computes."""

    name: str = ""

    def others(self, parts: PartSize) -> list[Action]:
        """Return the other sizes that a search tries."""
        sizes = [parts.whole // count for count in COUNTS if parts.whole // count >= LEAST_PART]
        return [replace(self, size=size) for size in dict.fromkeys((0, parts.size, *sizes)) if size != self.size]

    def why_not(self, parts: PartSize) -> str | None:
        if self.size in (0, parts.size) or LEAST_PART <= self.size < parts.whole:
            return None
        return f"a part has {LEAST_PART} elements at least, and fewer than {parts.whole}"


@dataclass(frozen=True)
class NestNumber(Action):
    """One of the numbers by which a nest is mapped. nest: the number of the nest after cutting; what: a field of NestChoices."""

    nest: int = 0
    what: str = ""

    def __str__(self) -> str:
        return f"{self.what} {self.size} (nest {self.nest})"


ACTIONS: Mapping[str, type[Action]] = {kind.__name__: kind for kind in (Again, PartsOf, NestNumber)}


@dataclass(frozen=True, eq=False)
class Arranged:
    """A program whose long reductions are cut, what could be cut in it, and the form of each nest."""

    stages: StageProgram
    parts: Mapping[str, PartSize]
    forms: Mapping[int, NestMapper]


def task_of(spec: Spec) -> KernelTask:
    """Return the task of a spec."""
    return KernelTask(spec_to_loops.definition_of(spec))


def seed(task: KernelTask) -> Schedule:
    """Return the full schedule that the rules choose. Raises NotLowered and LanguageError."""
    return completed(task, ())


def completed(task: KernelTask, schedule: Schedule) -> Schedule:
    """Return the schedule with every open choice filled in, in order. Raises IllegalAction, NotLowered and LanguageError."""
    arranged, numbers = _arranged(task, schedule), chosen(task, schedule)
    sizes = {a.name: a.size for a in schedule if isinstance(a, PartsOf)}
    again = set(arranged.stages.again)
    actions: list[Action] = [Again(int(i in again), i) for i in range(arranged.stages.dear)]
    actions += [PartsOf(sizes.get(name, one.size), name) for name, one in arranged.parts.items()]
    actions += [NestNumber(size, nest, what) for nest, choices in numbers.items() for what, size in choices.items()]
    if (strange := {a.site for a in schedule} - {a.site for a in actions}):
        raise IllegalAction(f"there is nothing of {min(map(str, strange))} to choose")
    return tuple(actions)


def chosen(task: KernelTask, schedule: Schedule) -> dict[int, NestChoices]:
    """Return the numbers by which each nest is mapped. Raises IllegalAction, NotLowered and LanguageError."""
    result = dict[int, NestChoices]()
    for nest, form in _arranged(task, schedule).forms.items():
        own = {a.what: a.size for a in schedule if isinstance(a, NestNumber) and a.nest == nest}
        rules = form.seed()
        strange = own.keys() - {what for what, _ in rules.items()}
        result[nest] = rules if strange or not own else replace(rules, **own)
        why = f"it chooses no {min(strange)}" if strange else form.why_not(result[nest]) if own else None
        if why is not None:
            raise IllegalAction(f"nest {nest}: {why}")
    return result


def program(task: KernelTask, schedule: Schedule, aligned: bool = True) -> LoopProgram:
    """Return the kernels as a schedule arranges them. Raises IllegalAction, NotLowered and LanguageError."""
    numbers = chosen(task, schedule)
    loops = map_loops(_arranged(task, schedule).stages, task.target, aligned, chosen=numbers)
    why = why_unfit(loops, task.target)
    if why is not None:
        raise IllegalAction(why)
    return loops


def changed(task: KernelTask, schedule: Schedule, action: Action) -> Schedule:
    """Return the full schedule with `action` in place of the action at its site. A number may bring others of its nest with it. If
    an action changes the set of nests, numbers that no longer apply are dropped. Raises IllegalAction, NotLowered and
    LanguageError."""
    others = tuple(a for a in schedule if a.site != action.site)
    if not isinstance(action, NestNumber):
        first = tuple(a for a in others if isinstance(a, Again) or (isinstance(a, PartsOf) and isinstance(action, PartsOf)))
        return _with_numbers(task, completed(task, (*first, action)), [a for a in others if isinstance(a, NestNumber)])
    form = _arranged(task, schedule).forms.get(action.nest)
    own = chosen(task, schedule).get(action.nest)
    if form is None or own is None or action.what not in dict(own.items()):
        raise IllegalAction(f"{action}: there is nothing to choose")
    numbers = form.with_one(own, action.what, action.size)
    rest = tuple(a for a in others if not (isinstance(a, NestNumber) and a.nest == action.nest))
    return completed(task, (*rest, *(NestNumber(size, action.nest, what) for what, size in numbers.items())))


def choices(task: KernelTask, schedule: Schedule) -> list[list[Action]]:
    """Return, for each action of a full schedule, the other legal actions at its site. Sites without one are left out."""
    arranged, numbers = _arranged(task, schedule), chosen(task, schedule)
    result: list[list[Action]] = []
    for a in schedule:
        others: list[Action] = []
        if isinstance(a, Again):
            others = [replace(a, size=1 - a.size)]
        elif isinstance(a, PartsOf):
            others = a.others(arranged.parts[a.name])
        elif isinstance(a, NestNumber):
            form, own = arranged.forms[a.nest], numbers[a.nest]
            others = [replace(a, size=size) for size in SIZES[a.what]
                      if size != a.size and form.why_not(form.with_one(own, a.what, size)) is None]
        result += [others] if others else []
    return result


def why_unfit(loops: LoopProgram, target: Target) -> str | None:
    """Return why a target cannot run kernels: a block with too much shared memory, too many threads or, surely, too many registers;
    None where it can."""
    for kernel in loops.kernels:
        shared, words = shared_places(kernel.buffers)[1], _words(kernel)
        if shared > target.shared:
            return f"{kernel.entry} takes {shared} bytes of shared memory, and a block has {target.shared}"
        if kernel.threads > target.threads:
            return f"{kernel.entry} has {kernel.threads} threads, and a block has at most {target.threads}"
        if words > (most := min(target.registers_of_thread, target.registers // (kernel.threads * kernel.resident))):
            return f"{kernel.entry} has {words} words for a thread, which has at most {most} registers"
    return None


def _words(kernel: LoopKernel) -> int:
    """Return the words of the largest register buffer of a thread; others may be there at other times."""
    arrays = [b.array for b in kernel.buffers if b.place == "register"]
    return max((-(-int(d.evaluate(a.size, {})) * (a.dtype if a.role != "scratch" else computed_in(a.dtype)).itemsize // 4)
                for a in arrays), default=0)


def _arranged(task: KernelTask, schedule: Schedule) -> Arranged:
    sites = [a.site for a in schedule]
    if len(set(sites)) < len(sites):
        raise IllegalAction(f"two actions choose the same: {max(sites, key=sites.count)}")
    return _cut(task, tuple(a for a in schedule if not isinstance(a, NestNumber)))


@lru_cache(maxsize=256)
def _cut(task: KernelTask, schedule: Schedule) -> Arranged:
    again = [a for a in schedule if isinstance(a, Again)]
    parts = {a.name: a for a in schedule if isinstance(a, PartsOf)}
    stages, sites = cut_program(task.definition, again=[a.value for a in again if a.size] if again else None,
                                parts={name: a.size for name, a in parts.items()})
    for a in again:
        if a.value >= stages.dear or a.size not in (0, 1):
            raise IllegalAction(f"{a}: {stages.dear} dear values are needed by several stages, and each is stored or not")
    for name, part in parts.items():
        why = f"nothing named {name} can be cut" if name not in sites else part.why_not(sites[name])
        if why is not None:
            raise IllegalAction(f"{part}: {why}")
    return Arranged(stages, sites, forms(stages, task.target))


def _with_numbers(task: KernelTask, schedule: Schedule, numbers: list[NestNumber]) -> Schedule:
    """Return a full schedule with those numbers that apply to it; nest by nest, where all of a nest do."""
    for nest in dict.fromkeys(a.nest for a in numbers):
        own = tuple(a for a in numbers if a.nest == nest)
        others = tuple(a for a in schedule if not (isinstance(a, NestNumber) and a.nest == nest))
        theirs = {a.site for a in schedule} - {a.site for a in others}
        if theirs == {a.site for a in own}:
            try:
                schedule = completed(task, (*others, *own))
            except IllegalAction:
                continue                                            # of another nest that has this number now
    return schedule
