"""fit: fits the learned cost model to the measurements of this machine, and tests it on workloads that it was not fitted to.

The target is the natural logarithm of seconds ÷ roofline. The fold of a measurement depends on its graph alone, so an op under test
is in the training data at no size. The model is a set of boosted trees: LightGBM (Ke et al., NeurIPS 2017), the extra `tuning`.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import mean, median
from typing import Any

import numpy as np

from tensor_graphs.costs.database_keys import VERIFIER, environment_of
from tensor_graphs.costs.learned.cost_model import machine
from tensor_graphs.costs.learned.features import features_of
from tensor_graphs.costs.learned.trees import HIGH, MIDDLE, Model, Tree
from tensor_graphs.costs.measured_rates import rates_in
from tensor_graphs.costs.roofline import estimate_seconds, says_of
from tensor_graphs.devices.environment import Environment
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.one_op_signature import signature_of_graph
from tensor_graphs.kernels.registry import all_kernels, device_of, why_missing
from tensor_graphs.language.json_reader import graph_from_json
from tensor_graphs.records.database import Database
from tensor_graphs.records.measurements import latest_traces, workloads

log = logging.getLogger(__name__)

LEAST = 60
"""Number of measurements below which no model is fitted."""

FEW = 4
"""Number of measurements of a kernel below which its name is no feature."""

FOLDS = 5
APART = 0.05
"""Relative difference of two times below which their order is not counted."""

# The mean of logarithms, not the median: what few kernels take three times as long for (one row, which no thread shares) is what
# first choices go wrong by, and the median does not see it (decision 0038).
OBJECTIVES: Mapping[str, Mapping[str, Any]] = {MIDDLE: {"objective": "l2"}, HIGH: {"objective": "quantile", "alpha": 5 / 6}}

# Limits are drawn at random (extremely randomized trees: Geurts, Ernst, Wehenkel, Machine Learning 63, 2006): sums of such are
# smoother between the sizes that were measured, and order more pairs than those with the best limits (decision 0068).
SETTINGS: Mapping[str, Any] = {
    "num_leaves": 15, "min_data_in_leaf": 4, "learning_rate": 0.07, "lambda_l2": 1.0, "verbosity": -1, "extra_trees": True,
    "bagging_fraction": 0.8, "bagging_freq": 1, "seed": 0, "num_threads": 2, "deterministic": True,
}
ROUNDS = 300


class CannotTrain(TensorGraphsError):
    """Error: too few measurements, or LightGBM is missing."""


@dataclass(frozen=True)
class Sample:
    """One measured kernel (or schedule) on one workload. graph: structural key. machine: `Environment.machine`. seconds: of one
    call. roofline: the estimated seconds. rules: for a schedule, the seconds of the rule-based schedule."""

    graph: str
    workload: str
    kernel: str
    machine: str
    features: Mapping[str, float]
    seconds: float
    roofline: float
    rules: float | None = None

    @property
    def base(self) -> float:
        """Return the seconds that the learned factor multiplies."""
        return self.roofline if self.rules is None else self.rules

    @property
    def off(self) -> float:
        return math.log(self.seconds / self.base)


def samples_of(database: Database, backends: Sequence[str], threads: int | None = None) -> list[Sample]:
    """Return the times, measured one call at a time with cold operands, of kernels whose code is unchanged on this machine."""
    kernels = {k.identity: k for k in all_kernels(backends)}
    return samples_in(database, [environment_of(backend, threads) for backend in backends if why_missing(backend) is None], kernels)


def samples_in(database: Database, environments: Sequence[Environment], kernels: Mapping[str, Kernel]) -> list[Sample]:
    """Return the times of these kernels, given by source hash, in these environments of one machine."""
    samples = []
    for environment in environments:
        backend = environment.backend
        rows = [row for row in latest_traces(database, environment, "cold", verifier=VERIFIER).values()
                if row.median_ms and row.status == "PASSED" and not row.refuted and row.source_hash in kernels]
        asked = workloads(database, {row.workload_key for row in rows})
        rates = rates_in(database, [e for e in environments if device_of(e.backend) is device_of(backend)])
        for row in rows:
            text, axes = asked[row.workload_key]
            kernel = kernels[row.source_hash]
            try:
                signature = signature_of_graph(graph_from_json(text))
            except (TensorGraphsError, ValueError) as error:        # an op that this version reads differently, or not at all
                log.debug("%s on %s is left out: %s", kernel.name, row.workload_key[:8], error)
                continue
            binding = signature.binding(axes) if signature.dim_names else {}
            moved, steps = says_of(kernel, signature.spec, binding)
            roofline = estimate_seconds(signature, binding, backend, rates, moved, steps)
            features = features_of(signature, binding, backend, kernel.name, roofline, moved, steps)
            assert row.median_ms is not None
            samples.append(Sample(signature.key, row.workload_key, kernel.name, environment.machine, features, row.median_ms * 1e-3,
                                roofline))
    return samples


def fitted(samples: Sequence[Sample], note: str = "") -> Model:
    """Return a model fitted to these measurements. Raises CannotTrain."""
    try:
        import lightgbm
    except ImportError as e:
        raise CannotTrain("the cost model is fitted with LightGBM, which is not installed\n"
                          "  fix: pip install 'tensor_graphs[tuning]'") from e
    _require_enough(samples)
    count: dict[str, int] = {}
    for sample in samples:
        for name in sample.features:
            count[name] = count.get(name, 0) + 1
    names = tuple(sorted(name for name, n in count.items() if n >= FEW or not name.startswith("kernel ")))
    x = np.array([[sample.features.get(name, 0.0) for name in names] for sample in samples])
    y = np.array([sample.off for sample in samples])
    trees = {}
    for which, objective in OBJECTIVES.items():
        data = lightgbm.Dataset(x, y, params={"verbosity": -1}, free_raw_data=True)
        booster = lightgbm.train({**SETTINGS, **objective}, data, num_boost_round=ROUNDS)
        trees[which] = tuple(tree_of(sample["tree_structure"]) for sample in booster.dump_model()["tree_info"])
    return Model(names, trees, len(samples), machine(), note)


def tree_of(node: Mapping[str, Any]) -> Tree:
    """Return a tree in array form, from LightGBM's nested form."""
    feature: list[int] = []
    limit: list[float] = []
    left: list[int] = []
    right: list[int] = []
    value: list[float] = []

    def add(node: Mapping[str, Any]) -> int:
        if "leaf_value" in node:
            value.append(float(node["leaf_value"]))
            return ~(len(value) - 1)
        i = len(feature)
        feature.append(int(node["split_feature"]))
        limit.append(float(node["threshold"]))
        left.append(0)
        right.append(0)
        left[i], right[i] = add(node["left_child"]), add(node["right_child"])
        return i

    add(node)
    return Tree(tuple(feature), tuple(limit), tuple(left), tuple(right), tuple(value))


# ---- how good it is --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quality:
    """Quality of one predictor on workloads that it was not fitted to. factor: median error, as a factor of at least 1. pairs:
    share of pairs of kernels on one workload, more than APART apart, that are ordered correctly. top1, top5: the time of the best
    of the predictor's first one or five choices ÷ the best time, averaged."""

    name: str
    factor: float
    pairs: float
    top1: float
    top5: float


def fold_of(graph: str) -> int:
    return int(hashlib.sha256(graph.encode()).hexdigest(), 16) % FOLDS


def _require_enough(samples: Sequence[Sample]) -> None:
    if len(samples) < LEAST:
        raise CannotTrain(f"{len(samples)} measurements of this machine are on file, and a cost model needs {LEAST}\n"
                          "  fix: tg profile some graphs first, without --paths: it learns from kernels that were timed alone, and "
                          "not from whole runs and their steps")


def checked(samples: Sequence[Sample]) -> list[Quality]:
    """Return the qualities of the model, the roofline and the nearest neighbour by cross-validation: each fold is predicted from
    the other folds. Raises CannotTrain."""
    _require_enough(samples)
    predictions: dict[str, dict[int, float]] = {}
    for fold in range(FOLDS):
        training = [s for s in samples if fold_of(s.graph) != fold]
        asked = {i: s for i, s in enumerate(samples) if fold_of(s.graph) == fold}
        if asked and len(training) < LEAST:
            raise CannotTrain(f"{len(samples)} measurements of this machine are on file; without those of the graphs of one fifth "
                              f"{len(training)} are left, and a cost model needs {LEAST}\n  fix: tg profile some graphs first")
        for name, times in predicted(training, asked).items():
            predictions.setdefault(name, {}).update(times)
    return [quality(name, samples, times) for name, times in predictions.items()]


def predicted(training: Sequence[Sample], asked: Mapping[int, Sample]) -> dict[str, dict[int, float]]:
    """Return the predicted seconds by name of predictor and key of `asked`. Raises CannotTrain."""
    if not asked:
        return {}
    model, near = fitted(training), nearest(training)
    return {"learned": {i: s.base * math.exp(model.estimate(s.features).off) for i, s in asked.items()},
            "roofline": {i: s.roofline for i, s in asked.items()},
            "nearest neighbour": {i: s.base * math.exp(near(s)) for i, s in asked.items()}}


def nearest(training: Sequence[Sample]) -> Callable[[Sample], float]:
    """Return a function that predicts the `off` of a sample as that of the training sample with the nearest features. The distance
    in each feature is divided by the feature's standard deviation."""
    names = sorted({name for s in training for name in s.features})
    x = np.array([[s.features.get(name, 0.0) for name in names] for s in training])
    scale = np.where(x.std(axis=0) > 0, x.std(axis=0), 1.0)

    def off(s: Sample) -> float:
        at = np.array([s.features.get(name, 0.0) for name in names])
        return training[int(np.argmin((((x - at) / scale) ** 2).sum(axis=1)))].off

    return off


def quality(name: str, samples: Sequence[Sample], predicted: Mapping[int, float]) -> Quality:
    off = [abs(math.log(predicted[i] / s.seconds)) for i, s in enumerate(samples) if i in predicted]
    right, first, firsts = [], [], []
    for group in _rivals(samples):
        times = {i: samples[i].seconds for i in group}
        best = min(times.values())
        order = sorted(group, key=lambda i: predicted[i])
        first.append(times[order[0]] / best)
        firsts.append(min(times[i] for i in order[:5]) / best)
        for a, b in combinations(group, 2):
            if abs(times[a] - times[b]) > APART * min(times[a], times[b]):
                right.append((predicted[a] < predicted[b]) == (times[a] < times[b]))
    return Quality(name, math.exp(median(off)), mean(right) if right else math.nan, mean(first) if first else math.nan,
                   mean(firsts) if firsts else math.nan)


def _rivals(samples: Sequence[Sample]) -> Iterator[list[int]]:
    """Return the indices of the measurements on each workload that has several."""
    by_workload: dict[str, list[int]] = {}
    for i, s in enumerate(samples):
        by_workload.setdefault(s.workload, []).append(i)
    return (group for group in by_workload.values() if len(group) > 1)
