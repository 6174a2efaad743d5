"""tile_schedule: the shapes of a product's tiles as data, for kernels of a template into which stages are printed (cuda_tiles.py).

A schedule has an action for each size of a shape (kernels/cuda/matrix_products.py); the rule is an estimate. No action changes what
is computed, except for the order of sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from tensor_graphs.codegen import spec_to_loops
from tensor_graphs.codegen.print import cuda_tiles
from tensor_graphs.codegen.print.cuda_tiles import TileTemplate
from tensor_graphs.codegen.schedule_actions import Action, IllegalAction, Schedule
from tensor_graphs.kernels.cuda import matrix_products as p
from tensor_graphs.kernels.cuda.matrix_products import TileShape
from tensor_graphs.kernels.kernel import LaunchCall, NotLowered, Spec
from tensor_graphs.language.composite import Definition

SIZES: Mapping[str, tuple[int, ...]] = {
    "columns": (16, 32, 64, 128, 256), "splits": (1, 2, 4, 8), "stages": (2, 3, 4, 5, 6, 7, 8)}
"""the sizes that a search tries"""

SHAPED: Mapping[str, TileTemplate] = {template.name: template for template in cuda_tiles.TEMPLATES if template.shape is not None}
"""the templates whose tiles may have several shapes"""


@dataclass(frozen=True)
class TileSize(Action):
    """One size of a shape. what: a field of TileShape."""

    what: str = ""

    def __str__(self) -> str:
        return f"{self.size} {self.what}"


ACTIONS: Mapping[str, type[Action]] = {TileSize.__name__: TileSize}


@dataclass(frozen=True, eq=False)
class TileTask:
    """A definition of products and what follows them. product: the spec of one of them alone; count: how many there are."""

    template: TileTemplate
    definition: Definition
    product: Spec
    count: int

    def seed(self) -> TileShape:
        assert self.template.shape is not None
        return self.template.shape(self.product, self.count)

    def with_one(self, shape: TileShape, what: str, size: int) -> TileShape:
        """Return a shape with another size; other columns have as many stages as there is room for."""
        stages = p.most_stages(self.product, size, self.count, self.template.turned) if what == "columns" else shape.stages
        return replace(shape, **{"stages": stages, what: size})

    def why_not(self, shape: TileShape) -> str | None:
        return p.shape_differs(self.product, shape, self.count, self.template.turned)


def task_of(template: TileTemplate, spec: Spec) -> TileTask:
    """Return the task of a spec. Raises NotLowered where a template does not take it, or takes prepared weights."""
    why = cuda_tiles.refuse(template, spec)
    product, count = cuda_tiles.product_of(spec)
    if why is not None or p.is_prepared(product):
        raise NotLowered(why or "parts of its weights are prepared, and no schedule is searched")
    return TileTask(template, spec_to_loops.definition_of(spec), product, count)


def seed(task: TileTask) -> Schedule:
    """Return the schedule that the rule chooses."""
    return _schedule(task.seed())


def shape_of(task: TileTask, schedule: Schedule) -> TileShape:
    """Return the shape of a schedule, with the rule's sizes where it has none. Raises IllegalAction."""
    own = {a.what: a.size for a in schedule if isinstance(a, TileSize) and a.what in SIZES}
    if len(own) < len(schedule):
        raise IllegalAction(f"a shape has {', '.join(SIZES)}, and one of each")
    shape = replace(task.seed(), **own)
    why = task.why_not(shape) if own else None
    if why is not None:
        raise IllegalAction(why)
    return shape


def changed(task: TileTask, schedule: Schedule, action: Action) -> Schedule:
    """Return the schedule with `action` in place of the action at its site, and what follows from it. Raises IllegalAction."""
    if not isinstance(action, TileSize) or action.what not in SIZES:
        raise IllegalAction(f"{action}: a shape has {', '.join(SIZES)}")
    shape = task.with_one(shape_of(task, schedule), action.what, action.size)
    return _schedule(shape_of(task, _schedule(shape)))


def choices(task: TileTask, schedule: Schedule) -> list[list[Action]]:
    """Return, for each action of a schedule, the other legal actions at its site. Sites without one are left out."""
    shape = shape_of(task, schedule)
    result: list[list[Action]] = []
    for what, sizes in SIZES.items():
        others: list[Action] = [TileSize(size, what) for size in sizes if size != getattr(shape, what)
                                and task.why_not(task.with_one(shape, what, size)) is None]
        result += [others] if others else []
    return result


def program(task: TileTask, schedule: Schedule) -> LaunchCall:
    """Return the call of a schedule. Raises IllegalAction, NotLowered."""
    return cuda_tiles.with_shape(task.template, task.definition, shape_of(task, schedule))


def _schedule(shape: TileShape) -> Schedule:
    return tuple(TileSize(size, what) for what, size in asdict(shape).items())
