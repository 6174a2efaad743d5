"""schedule_features: features of a schedule for the learned cost model, computed before the schedule is compiled. They describe the
loops of its stage program, and compare them with those of the rule-based schedule.

    features_of_schedule(signature, binding, program, rules)

`program` is the stage program of the schedule (codegen/schedule_actions.py), `rules` that of the rule-based schedule. The learned
target is log(time ÷ time of the rule-based schedule), so most features are differences of the two. Sizes are logarithms to base 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from tensor_graphs.codegen.arithmetic_count import stage_weight
from tensor_graphs.codegen.loop_ir import Axis, Nest, Stage, StageProgram, across, values_in
from tensor_graphs.codegen.lower import DEAR
from tensor_graphs.codegen.mapping import cpu_parts
from tensor_graphs.codegen.schedule_actions import OF_STAGE
from tensor_graphs.codegen.traffic import traffic_of
from tensor_graphs.costs.loop_features import shapes_of
from tensor_graphs.costs.roofline import work
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim


@dataclass(frozen=True)
class _SizedStage:
    """A stage at concrete sizes. steps: the weighted steps of all its iterations. inner: the iterations of its innermost loop."""

    nest: Nest
    stage: Stage
    steps: float
    inner: float


def features_of_schedule(signature: Signature, binding: Mapping[str, int], program: StageProgram,
                         rules: StageProgram) -> dict[str, float]:
    at = tuple(sorted((n, int(binding[n])) for n in signature.dim_names))
    features, base = _of(program, dict(at)), _of_rules(rules, at)
    names = {**features, **base}
    return _of_call(signature, at) | features | {
        f"{name}, beside the rules": features.get(name, 0.0) - base.get(name, 0.0) for name in names}


@lru_cache(maxsize=64)
def _of_call(signature: Signature, at: tuple[tuple[str, int], ...]) -> dict[str, float]:
    """Return the features that all schedules of a call share."""
    nbytes, flops = work(signature, at)
    types = (*signature.spec.outputs, *signature.spec.inputs)
    return shapes_of(signature).at(dict(at)) | {
        "bytes": _log(nbytes), "flops": _log(flops), "itemsize": float(max((t.dtype.itemsize for t in types), default=0)),
        "itemsize, least": float(min((t.dtype.itemsize for t in types), default=0))}


@lru_cache(maxsize=16)
def _of_rules(program: StageProgram, at: tuple[tuple[str, int], ...]) -> dict[str, float]:
    return _of(program, dict(at))


def _of(program: StageProgram, at: Mapping[str, int]) -> dict[str, float]:
    loops = list(_loops(program, at))
    total = sum(loop.steps for loop in loops)
    shared, own = cpu_parts.scratch_bytes(program)
    features = {
        "steps": _log(total), "traffic": _log(_size(traffic_of(program), at)), "nests": float(len(program.nests)),
        "scratch": _log(_size(shared, at)), "scratch of a thread": _log(_size(own, at)), "again": float(len(program.again))}
    alone = 0.0
    heaviest = 0.0
    for nest in program.nests:
        steps = sum(loop.steps for loop in loops if loop.nest is nest)
        turns, unit, of_one = cpu_parts.split(nest)
        count = _size(turns, at)
        chunk = math.ceil(max(1.0, nest.advice.grain / max(1, of_one)) / unit) * unit
        parts = max(1.0, math.ceil(count / chunk))
        alone += steps if parts < 2.0 else 0.0
        if steps >= heaviest:
            heaviest = steps
            features |= {"parts": math.log2(parts), "steps of a part": _log(steps / parts), "grain": math.log2(nest.advice.grain),
                      "tile": math.log2(nest.advice.tile) if nest.tile is not None else 0.0, "turns": _log(count)}
    gaps = [gap for loop in loops for gap in _gaps(loop, at)]
    if gaps:
        features |= {"gap": _log(max(gaps)), "gap: twos": float(max((int(g) & -int(g)).bit_length() - 1 for g in gaps))}
    features["share that one thread takes"] = alone / max(1.0, total)
    for kind in OF_STAGE:
        result = kind(1, 0, 0)
        taking = [loop for loop in loops if result.unfit(loop.stage) is None]
        if not taking:
            continue
        name, steps = kind.__name__, sum(loop.steps for loop in taking)
        most = max(taking, key=lambda loop: loop.steps)
        values = list(values_in(most.stage.value))
        features |= {
            name: sum(math.log2(result.read(loop.stage)) * loop.steps for loop in taking) / max(1.0, steps),
            f"{name}: of the heaviest": math.log2(result.read(most.stage)),
            f"{name}: share": steps / max(1.0, total), f"{name}: turns": _log(most.inner),
            f"{name}: turns ÷ it": _log(most.inner) - math.log2(result.read(most.stage)),
            f"{name}: dear": float(sum(v.op in DEAR for v in values)),
            f"{name}: loads": float(sum(v.op == "load" for v in values)), f"{name}: sum": float(most.stage.monoid == "sum"),
            f"{name}: scan": float(most.stage.scan is not None)}
    return features


def _loops(program: StageProgram, at: Mapping[str, int]) -> Iterator[_SizedStage]:
    for nest in program.nests:
        for stage in nest.stages:
            turns = math.prod(_extent(a, at) for a in (*nest.axes[:stage.level], *nest.loops(stage)))
            inner = (*stage.axes[-1:], *stage.reduce[-1:]) or nest.axes[-1:]
            along = stage.reduce[-1:] if stage.reduce and not across(stage) else inner[:1]
            yield _SizedStage(nest, stage, turns * stage_weight(nest, stage), math.prod(_extent(a, at) for a in along))


def _gaps(loop: _SizedStage, at: Mapping[str, int]) -> Iterator[float]:
    """Yield the distances in bytes between loads of neighbouring iterations of the innermost loop that exceed one element."""
    axes = (*loop.stage.axes[-1:], *loop.stage.reduce[-1:]) or loop.nest.axes[-1:]
    for load in values_in(loop.stage.value):
        if load.op == "load":
            array, offset, _ = load.attr
            for axis in axes:
                step = d.coefficient(offset, axis.name)
                gap = 0.0 if step is None else abs(_size(step, at)) * array.dtype.itemsize
                if gap > array.dtype.itemsize:
                    yield gap


def _extent(axis: Axis, at: Mapping[str, int]) -> float:
    return _size(axis.size, at)


def _size(size: Dim, at: Mapping[str, int]) -> float:
    """Return the value of a size at these dims, or its largest value if it depends on a loop axis as well."""
    if isinstance(size, d.Expr) and not set(size.symbols) <= set(at):
        return float(d.bounds(size)[1])
    return float(d.evaluate(size, at))


def _log(x: float) -> float:
    return math.log2(x + 1.0)
