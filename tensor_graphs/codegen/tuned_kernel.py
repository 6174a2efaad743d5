"""tuned_kernel: kernels of `gen` for one signature, with loops arranged by a schedule (schedule_actions.py). The kernel's source is
JSON with the schedule: part of its identity, stored with it in the database, and enough to rebuild it in any process.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from tensor_graphs.codegen import backend, compiled_libraries, schedule_actions, spec_to_loops
from tensor_graphs.codegen.loop_ir import StageProgram
from tensor_graphs.codegen.print import c_loops
from tensor_graphs.codegen.refusals import cached, why_not
from tensor_graphs.codegen.schedule_actions import Schedule
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.kernels.kernel import Kernel, NativeCall, NotLowered, Spec
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language.dims import Dim

PREFIX = f"{backend.NAME}.tuned_"
"""the prefix of tuned kernels' names"""


@dataclass(frozen=True)
class _Source:
    """The content of a tuned kernel's source. computes: the key of the signature; op: the name of its op."""

    computes: str
    op: str
    schedule: Schedule


def tuned(signature: Signature, schedule: Schedule) -> Kernel:
    """Return the kernel of a signature with its loops arranged by a schedule."""
    content = {"computes": signature.key, "op": signature.spec.op.name, "actions": json.loads(schedule_actions.to_json(schedule))}
    return kernel_from(json.dumps(content, sort_keys=True))


def kernel_from(text: str) -> Kernel:
    """Return the kernel that a source describes. Raises IllegalAction."""
    source = _said(text)
    return Kernel(name=f"{PREFIX}{hashlib.sha256(text.encode()).hexdigest()[:16]}", backend=backend.NAME, op=source.op,
                  build=partial(_build, text), accepts=partial(_refuse, text), source=text, module=__name__,
                  traffic=partial(_traffic, text), arithmetic=partial(_arithmetic, text), together=partial(_together, text),
                  toolchain=compiled_libraries.made_with(), contiguous=True, strided=backend.strided, remade=kernel_from.__name__)


def text_of(kernel: Kernel, spec: Spec) -> str:
    """Return the C source of a tuned kernel, with its schedule and its math as comments. Raises NotLowered."""
    chosen = "\n".join(f" * {action}" for action in schedule_of(kernel))
    return f"/* schedule:\n{chosen}\n */\n{c_loops.rendered(_found(kernel.source, spec))}"


def differs(kernel: Kernel, spec: Spec) -> str:
    """Return the actions of a tuned kernel that differ from the rules' choice, as readable text."""
    rules = schedule_actions.seed(spec_to_loops.definition_of(spec))
    return "; ".join(str(a) for a in schedule_of(kernel) if a not in rules)


def schedule_of(kernel: Kernel) -> Schedule:
    """Return the schedule of a tuned kernel."""
    return _said(kernel.source).schedule


@lru_cache(maxsize=1024)
def _said(text: str) -> _Source:
    try:
        read = json.loads(text)
        return _Source(str(read["computes"]), str(read["op"]), schedule_actions.from_json(json.dumps(read["actions"])))
    except (KeyError, TypeError, ValueError) as e:
        raise schedule_actions.IllegalAction(f"{text[:80]!r} says no tuned kernel: {type(e).__name__}: {e}") from e


@cached(maxsize=4096)
def _scheduled(text: str, asked: spec_to_loops.AskedSpec) -> StageProgram:
    source, spec = _said(text), asked.spec
    if spec.single_node_graph().structural_key != source.computes:
        raise NotLowered(f"it was tuned for another {source.op}")
    definition = spec_to_loops.definition_of(spec)
    if spec_to_loops.loops_of(definition).updated:
        raise NotLowered("it writes rows into what is there, of which no schedule is searched")
    try:
        return schedule_actions.replay(definition, source.schedule)
    except TensorGraphsError as e:
        raise NotLowered(str(e)) from None


def _found(text: str, spec: Spec) -> StageProgram:
    return _scheduled(text, spec_to_loops.asked(spec))


def _refuse(text: str, spec: Spec) -> str | None:
    return why_not(_found, text, spec)


def _build(text: str, spec: Spec) -> NativeCall:
    return backend.call_of(_found(text, spec), len(spec.inputs))


def _together(text: str, specs: Sequence[Spec]) -> list[str | None]:
    return compiled_libraries.compiled_together([partial(_programs, text, spec) for spec in specs])


def _programs(text: str, spec: Spec) -> list[StageProgram]:
    return [_found(text, spec), *backend.programs_apart(spec)]


def _arithmetic(text: str, spec: Spec) -> Dim:
    return backend.steps(_found(text, spec))


def _traffic(text: str, spec: Spec) -> Dim:
    return backend.traffic_in(_found(text, spec))
