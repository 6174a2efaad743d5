"""error_calibration: corrects predicted errors of forms by errors that were measured on the same graph.

The sum over the sites of a graph (measure/sensitivity.py) leaves out that errors of different sites, and of rows, have common
directions. It predicts a mean, while limits on the largest error and on the worst cosine are for extremes. So measured ÷ predicted
differs by statistic and by graph, and varies much less between the forms of one graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

PRIOR = {"max": math.log(5.0), "norm": 0.0, "kl": 0.54, "cosine": 0.5}
"""statistic -> ln(measured ÷ predicted) of a graph without measurements. kl: the median of 36 forms of Gemma 3 270M with random
words at 7 to 127 sites (decision 0102); that of the norm was 1.01. max: ratio to the error of the norm. cosine: between the ratio
of an output of one row, which was 0.8 for MiniLM, and that of the worst row to the mean row of many, about 3"""

WEIGHT = 2.0
"""measurements that the prior counts for: the 36 forms vary by 0.2 (norm) to 0.3 (kl) in ln, about as much as medians of graphs"""

STEP = 0.25
"""step to which corrections are rounded in ln, so that a few more measurements seldom change which forms are tried"""

SATURATED = 0.3
"""predicted divergence from which on the measured one grows more slowly"""


def calibrated(statistic: str, logs: Sequence[float]) -> float:
    """Return the expected measured ÷ predicted error of a statistic. logs: ln(measured ÷ predicted) of forms of the graph.

    >>> round(calibrated("norm", []), 2), round(calibrated("kl", [0.9, 1.1]), 2)
    (1.0, 2.12)
    """
    return math.exp(STEP * round((WEIGHT * PRIOR[statistic] + sum(logs)) / (WEIGHT + len(logs)) / STEP))


def logs_of(rows: Iterable[Mapping[str, Any]], output: str, statistic: str, metric: str) -> list[float]:
    """Return ln(measured ÷ predicted) of each row that has a prediction of this metric. rows: conditions of rows of error draws,
    with `predicted`: output -> metric -> error, and `measured`: output -> statistic -> geometric mean over draws."""
    pairs = [(row["measured"].get(output, {}).get(statistic), row["predicted"].get(output, {}).get(metric))
             for row in rows if row.get("predicted")]
    return [math.log(measured / predicted) for measured, predicted in pairs
            if measured and predicted and not (metric == "kl" and predicted > SATURATED)]
