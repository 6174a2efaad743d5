"""search_samples: schedules timed by searches, as training samples of the model of schedules. Slow schedules are included; each is
compared with the rule-based schedule.

The target is the logarithm of a score: the time of a schedule ÷ the time of the rule-based schedule, timed in pairs. The rule-based
schedule is a sample (score 1) of each workload, too, though it has no row. The `kernel` of a sample is the JSON of its actions.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from statistics import median

from tensor_graphs.codegen import backend, schedule_actions, spec_to_loops, tuned_kernel
from tensor_graphs.codegen.schedule_actions import Schedule
from tensor_graphs.costs.database_keys import environment_of
from tensor_graphs.costs.learned.fit import Sample
from tensor_graphs.costs.measured_rates import rates_in
from tensor_graphs.costs.roofline import DeviceRates, estimate_seconds, says_of
from tensor_graphs.costs.schedule_features import features_of_schedule
from tensor_graphs.devices.environment import Environment
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.kernels.one_op_signature import signature_of_graph
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language.json_reader import graph_from_json
from tensor_graphs.records.database import Database
from tensor_graphs.records.queries import SearchedRow, searched


def schedules_of(database: Database, threads: int | None = None) -> list[Sample]:
    """Return the schedules timed on this machine with this number of threads."""
    return list(schedules_in(database, environment_of(backend.NAME, threads)))


def schedules_in(database: Database, environment: Environment) -> Iterator[Sample]:
    """Yield the schedules timed in an environment."""
    by_workload: dict[str, list[SearchedRow]] = {}
    for row in searched(database, environment):
        by_workload.setdefault(row.workload_key, []).append(row)
    rates = rates_in(database, [environment])
    for rows in by_workload.values():
        try:
            yield from _of_workload(rows, environment.machine, rates)
        except TensorGraphsError:                                   # loops that are lowered otherwise today
            continue


def _of_workload(rows: list[SearchedRow], machine: str, rates: DeviceRates | None) -> Iterator[Sample]:
    signature = _signature(rows[0].graph)
    binding = signature.binding(rows[0].axes) if signature.dim_names else {}
    definition = spec_to_loops.definition_of(signature.spec)
    seed = schedule_actions.seed(definition)
    rules = schedule_actions.replay(definition, seed)
    base = median(row.baseline_ms for row in rows) * 1e-3
    scores: dict[Schedule, list[float]] = {seed: [1.0]}
    for row in rows:
        scores.setdefault(tuned_kernel.schedule_of(tuned_kernel.kernel_from(row.source)), []).append(row.score)
    for schedule, score in scores.items():
        try:
            program = schedule_actions.replay(definition, schedule)
        except schedule_actions.IllegalAction:
            continue
        features = features_of_schedule(signature, binding, program, rules)
        roofline = estimate_seconds(signature, binding, backend.NAME, rates,
                                 *says_of(tuned_kernel.tuned(signature, schedule), signature.spec, binding))
        yield Sample(signature.key, rows[0].workload_key, schedule_actions.to_json(schedule), machine, features,
                     median(score) * base, roofline, base)


@lru_cache(maxsize=64)
def _signature(graph: str) -> Signature:
    return signature_of_graph(graph_from_json(graph))
