"""assumptions: named conditions on values that a rule or a kernel may assume."""

from __future__ import annotations

from collections.abc import Mapping

from tensor_graphs.language.atomic import ATOMIC

OVERFLOW, CANCELLATION, DIVISION = "no overflow", "no cancellation", ATOMIC["reciprocal"].facts.assumes
LOGARITHM, ROOT = ATOMIC["log2"].facts.assumes, ATOMIC["sqrt"].facts.assumes

CONDITIONS: Mapping[str, str] = {
    OVERFLOW: "no value on the way leaves the range of its dtype, upwards or to 0",
    DIVISION: "nothing is divided by 0",
    LOGARITHM: "logarithms are taken of numbers above 0 alone",
    ROOT: "square roots are taken of no negative number",
    CANCELLATION: "no difference is much smaller than what it is taken of, so that no digits are lost",
}
"""Every condition that a rule may assume: name -> description."""

DOMAIN = (DIVISION, LOGARITHM, ROOT)
"""The conditions that define where an op has a result."""

OF_KERNELS = (OVERFLOW, *DOMAIN)
"""The conditions that a kernel may assume; the others depend on its intermediate values, which verification does not see."""
