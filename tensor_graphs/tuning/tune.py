"""tune: search a schedule for one signature at given sizes, store all trials, have the winner judged, and make it a kernel.

Trials are stored as traces of the kind `search`, which no choice reads. The winner is judged and timed like any kernel, interleaved
with the rules' kernel, and chosen where those rows favour it.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Mapping

from tensor_graphs.codegen.tuned_kernel import tuned
from tensor_graphs.costs.database_keys import VERIFIER, environment_of, graph_record, implementation_of, timed_workload
from tensor_graphs.devices.device import DeviceError
from tensor_graphs.kernels import registry
from tensor_graphs.kernels.c import library
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.measure.judge import Judge
from tensor_graphs.measure.queue.next_measurements import Question, answer
from tensor_graphs.measure.queue.profile_report import TunedPart
from tensor_graphs.records.database import Database
from tensor_graphs.records.rows import TraceRecord
from tensor_graphs.tuning.generators import GENERATORS, HOST, Generator
from tensor_graphs.tuning.ranked_space import ranked
from tensor_graphs.tuning.space import Looked, Measured
from tensor_graphs.tuning.strategies import STRATEGIES, StrategyError, walk

log = logging.getLogger(__name__)

JUDGED = 1.2
"""seconds of timed runs of the winner, and of the seed, over several processes each"""


def tune(judge: Judge, signature: Signature, binding: Mapping[str, int], seconds: float, *, strategy: str = next(iter(STRATEGIES)),
         seed: int = 0, seed_kernel: str = HOST.kernel) -> TunedPart:
    """Search for this many seconds and return the result; judging its winner takes extra time. seed_kernel: the kernel with the
    rules' schedule. Raises NotLowered where its generator generates no loops, DeviceError, and StrategyError."""
    started = time.perf_counter()
    threads = library.load().threads()
    library.set_threads(judge.threads or 0)
    try:
        space = Measured(signature, binding, seconds, generator=GENERATORS[seed_kernel])
        try:
            walk(ranked(space), strategy, random.Random(seed))
        except (StrategyError, DeviceError, KeyboardInterrupt):     # what has been timed counts, whatever ends a search
            store(judge.database, signature, binding, space, strategy, seed, judge.threads)
            raise
        schedule, pairs = space.winner()
    finally:
        library.set_threads(threads)
    chosen = tuple(str(a) for a in schedule if a not in space.seed)
    store(judge.database, signature, binding, space, strategy, seed, judge.threads)
    kernel, status = registry.kernel_named(seed_kernel), "SEED"
    if pairs is not None:
        seeded, kernel = kernel, registry.know(tuned(signature, schedule, seed_kernel))
        asked = [Question(k, signature, binding, 1.0, again="beside what was tuned") for k in (kernel, seeded)]
        statuses = {q.kernel.name: status for q, status in answer(judge, asked, budget=4 * JUDGED, per_kernel=JUDGED, at_least=2)}
        status = statuses.get(kernel.name, "LEFT")
    ratio = 1.0 if pairs is None else pairs.ratio
    log.info("%s: %d schedules in %.1f s, %s: %.3f of the seed's time", signature.title(), len(space.looked),
             time.perf_counter() - started, kernel.name, ratio)
    return TunedPart(signature.title(), dict(binding), kernel.name, status, ratio, len(space.looked), time.perf_counter() - started,
                     strategy, chosen)


def store(database: Database, signature: Signature, binding: Mapping[str, int], space: Measured, strategy: str, seed: int,
          threads: int | None = None) -> None:
    """Store all trials except the seed."""
    database.ensure_graph(graph_record(signature))
    database.add_traces(_trace(signature, binding, looked, strategy, seed, threads, space.generator)
                        for looked in space.looked.values() if looked.schedule != space.seed)


def _trace(signature: Signature, binding: Mapping[str, int], looked: Looked, strategy: str, seed: int,
           threads: int | None, generator: Generator) -> TraceRecord:
    kernel = tuned(signature, looked.schedule, generator.kernel)
    environment = environment_of(kernel.backend, threads)
    conditions = {"search": {"strategy": strategy, "score": None if looked.samples is None else looked.samples.ratio}}
    where = implementation_of(kernel), timed_workload(signature, binding), environment, "search"
    if looked.samples is None:
        words = {"compile": "COMPILE_ERROR", "device": "RUNTIME_ERROR"}
        status = next((status for word, status in words.items() if word in looked.why), "INCORRECT_NUMERICAL")
        return TraceRecord(*where, status, verifier=VERIFIER, seed=seed, log=looked.why, conditions=conditions)   # type: ignore[arg-type]
    middle = sorted(looked.samples.seed)[len(looked.samples.seed) // 2]
    return TraceRecord(*where, "PASSED", samples_ms=tuple(s * 1e3 for s in looked.samples.own), baseline=generator.kernel,    # type: ignore[arg-type]
                       baseline_ms=middle * 1e3, timer=generator.timer, verifier=VERIFIER, seed=seed, conditions=conditions)

