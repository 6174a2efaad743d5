"""own_model: a user's cost model in place of the machine's: its interface, and a check of its results."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Protocol

from tensor_graphs.costs.learned.trees import Estimate
from tensor_graphs.errors import TensorGraphsError, raised
from tensor_graphs.kernels.signature import Signature

FARTHEST = math.log(1e9)
"""natural logarithm: nothing takes a billion times its roofline, nor a billionth of it"""


class CostModelError(TensorGraphsError):
    """A cost model of a user that cannot be used, or that returned no estimate."""


class CallModel(Protocol):
    """A cost model of calls: how far off its roofline the call of a kernel is."""

    def of_call(self, signature: Signature, binding: Mapping[str, int], backend: str, kernel: str, roofline: float,
                moved: float | None, arithmetic: float | None) -> Estimate:
        """Return the estimate for one call. roofline: its lower bound [s]; moved [byte], arithmetic [flop]: what the kernel
        declares, None where it declares nothing."""


@dataclass(frozen=True)
class Own:
    """A cost model of a user, whose estimates are checked."""

    model: CallModel
    version: str

    @property
    def origin(self) -> str:
        return f"by the cost model {self.version}"

    def of_call(self, signature: Signature, binding: Mapping[str, int], backend: str, kernel: str, roofline: float,
                moved: float | None, arithmetic: float | None) -> Estimate:
        """Return the model's estimate. Raises CostModelError where it raises, or returns something else."""
        try:
            estimate = self.model.of_call(signature, binding, backend, kernel, roofline, moved, arithmetic)
            off, spread = (getattr(estimate, name, math.nan) for name in ("off", "spread"))
            if all(isinstance(name, Real) for name in (off, spread)) and abs(off) <= FARTHEST and 0.0 <= spread <= FARTHEST:
                return estimate
            why = f"returned {estimate!r}"
        except Exception as e:
            why = f"raised {raised(e)}"
        raise CostModelError(f"the cost model {self.version!r} {why} for {kernel} on {signature.title()}\n  fix: return "
                             f"costs.trees.Estimate(off, spread), natural logarithms: off from {-FARTHEST:.0f} to {FARTHEST:.0f}, "
                             f"spread from 0 to {FARTHEST:.0f}")


def owned(model: CallModel, version: str) -> Own:
    """Return the model with its version. Raises CostModelError where it is no cost model, or the version is no text."""
    if not callable(getattr(model, "of_call", None)):
        raise CostModelError(f"a cost model has a method of_call, and this is of type {type(model).__name__}\n"
                             "  fix: an object with of_call(signature, binding, backend, kernel, roofline, moved, arithmetic)")
    if isinstance(model, type):
        raise CostModelError(f"{model.__name__} is a class, and a cost model is an object\n"
                             f"  fix: cost_model.use({model.__name__}(), …)")
    if not (isinstance(version, str) and version.strip()):
        raise CostModelError(f"the version of a cost model is {version!r}\n  fix: a text, as \"mine 1\"; another one whenever its "
                             "answers change, as plans on file depend on it")
    return Own(model, version)
