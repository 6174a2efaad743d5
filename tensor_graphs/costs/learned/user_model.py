"""user_model: the interface of a user's cost model, which replaces the machine's model, and a check of its results."""

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
"""Largest accepted |off|, a natural logarithm: no call takes more than a billion times its roofline or less than a billionth."""


class CostModelError(TensorGraphsError):
    """Error: a user's cost model cannot be used, or it returned no valid estimate."""


class CallModel(Protocol):
    """Interface of a cost model of calls. It estimates by what factor the time of a kernel's call differs from its roofline."""

    def of_call(self, signature: Signature, binding: Mapping[str, int], backend: str, kernel: str, roofline: float,
                moved: float | None, arithmetic: float | None) -> Estimate:
        """Return the estimate for one call. roofline: its lower bound [s]. moved [byte], arithmetic [flop]: what the kernel
        declares, None if it declares nothing."""


@dataclass(frozen=True)
class Own:
    """A user's cost model with its version. Every estimate is checked."""

    model: CallModel
    version: str

    @property
    def origin(self) -> str:
        return f"by the cost model {self.version}"

    def of_call(self, signature: Signature, binding: Mapping[str, int], backend: str, kernel: str, roofline: float,
                moved: float | None, arithmetic: float | None) -> Estimate:
        """Return the estimate of the user's model. Raises CostModelError if the model raises or returns no valid estimate."""
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
    """Return the model wrapped with its version. Raises CostModelError if either is of a wrong type, or the version is empty."""
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
