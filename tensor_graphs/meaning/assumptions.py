"""assumptions: conditions on values that a rule or a kernel may take for granted, by name."""

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
"""Every condition that a rule may assume, by its name."""

DOMAIN = (DIVISION, LOGARITHM, ROOT)
"""Those that say for what an op is defined."""

OF_KERNELS = (OVERFLOW, *DOMAIN)
"""Those that a kernel may assume: the others depend on its own intermediate values, which the judge does not see."""
