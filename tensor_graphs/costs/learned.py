"""learned: a cost model that was fitted to measurements of this machine: how far off its roofline a call is, and how sure that is.

    model = learned.of_machine()             # None: none was trained here (`tg costs train`)
    model.of_call(signature, …)              # Estimate(off, spread): log(seconds ÷ roofline), and what that may be off by
    learned.use(mine, version="mine 1")      # a cost model of the caller's own, in this process (docs/strategies.md)
    learned.of_machine(SCHEDULES)            # likewise of generated kernels' schedules: log(seconds ÷ the rules' schedule's)

What a model is stands in trees.py, which is loaded where there is one.
"""

from __future__ import annotations

import functools
import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tensor_graphs.arguments import switch
from tensor_graphs.devices.cache_folder import CacheFolderError, private_folder, unusable, user_folder
from tensor_graphs.devices.environment import fingerprint
from tensor_graphs.devices.sealed_files import read
from tensor_graphs.errors import TensorGraphsError

if TYPE_CHECKING:
    from tensor_graphs.costs.trees import Estimate, Model
    from tensor_graphs.kernels.signature import Signature

log = logging.getLogger(__name__)

VARIABLE = "TENSOR_GRAPHS_LEARNED_COSTS"
"""the environment variable: "off" to guess by rooflines alone"""

CALLS, SCHEDULES = "calls", "schedules"
"""what a model is of"""


def machine() -> str:
    """The machine that a model is of."""
    return fingerprint("numpy").machine


def file_of_machine(what: str = CALLS) -> Path:
    """Where this machine's model is kept; nothing is made."""
    return user_folder("costs") / f"{machine()[:32]}{'' if what == CALLS else f'-{what}'}.json"


def keep(model: Model, what: str = CALLS) -> Path:
    """Write a model where `of_machine` finds it, at once. Raises CacheFolderError, CacheDiskError."""
    from tensor_graphs.devices.sealing import whole_file  # a door: models are mostly read

    path = file_of_machine(what)
    private_folder(path.parent)
    try:
        with whole_file(path) as file:
            file.write(json.dumps(model.to_json()).encode())
    except OSError as error:
        raise unusable(path, error) from error
    of_machine.cache_clear()
    return path


@functools.cache
def of_machine(what: str = CALLS) -> Model | None:
    """This machine's model, read once in a process; None where there is none, or TENSOR_GRAPHS_LEARNED_COSTS says off. Raises
    ArgumentError where that says neither on nor off."""
    if not switch(VARIABLE, unless_said=True):
        return None
    try:
        path = file_of_machine(what)
        if not path.exists():
            return None
        content = read(path)
        if content is None:
            raise ValueError(f"{path} is damaged, or others may write to it (fix: tg costs train)")
        from tensor_graphs.costs.trees import Model  # here, as most machines have none

        model = Model.from_json(json.loads(content))
        if model.machine != machine():
            raise ValueError("it is of another machine")
    except (OSError, CacheFolderError, ValueError) as e:
        log.warning("the learned cost model is left out: %s", e)
        return None
    return model


class CostModelError(TensorGraphsError):
    """A cost model of a user that cannot be used, or that returned no estimate."""


class CallModel(Protocol):
    """A cost model of calls: how far off its roofline the call of a kernel is."""

    def of_call(self, signature: Signature, binding: Mapping[str, int], backend: str, kernel: str, roofline: float,
                moved: float | None, arithmetic: float | None) -> Estimate:
        """The estimate for one call. roofline: its lower bound [s]; moved [byte], arithmetic [flop]: what the kernel declares, None
        where it declares nothing."""


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
        """The model's estimate. Raises CostModelError where it raises, or returns something else."""
        try:
            found = self.model.of_call(signature, binding, backend, kernel, roofline, moved, arithmetic)
            if math.isfinite(found.off) and math.isfinite(found.spread) and found.spread >= 0.0:
                return found
            why = f"returned {found!r}"
        except Exception as e:
            why = f"raised {type(e).__name__}: {e}"
        raise CostModelError(f"the cost model {self.version!r} {why} for {kernel} on {signature.title()}\n  fix: return "
                             "costs.trees.Estimate(off, spread), finite numbers, spread 0 or more")


_own: Own | None = None


def use(model: CallModel | None, version: str = "") -> None:
    """Use a cost model of the caller's own in this process from now on; None: the one of the machine again.

    version: what plans on file depend on; another string whenever the model's answers change. The model is asked about kernels of
    this package on the host that were not measured. Raises CostModelError.
    """
    global _own
    if model is not None and not callable(getattr(model, "of_call", None)):
        raise CostModelError(f"a cost model has a method of_call, and this is of type {type(model).__name__}\n"
                             "  fix: an object with of_call(signature, binding, backend, kernel, roofline, moved, arithmetic)")
    if isinstance(model, type):
        raise CostModelError(f"{model.__name__} is a class, and a cost model is an object\n"
                             f"  fix: learned.use({model.__name__}(), …)")
    if model is not None and not (isinstance(version, str) and version.strip()):
        raise CostModelError(f"the version of a cost model is {version!r}\n  fix: a text, as \"mine 1\"; another one whenever its "
                             "answers change, as plans on file depend on it")
    _own = None if model is None else Own(model, version)


def of_calls() -> Own | Model | None:
    """The cost model of calls that is in use: the caller's own (`use`), else this machine's; None where there is none."""
    if _own is None:
        return of_machine()
    return _own if switch(VARIABLE, unless_said=True) else None


def version() -> str:
    """What changes when another model is in use: an own one's version, or the file's time and size; "" where there is none."""
    model = of_calls()
    if isinstance(model, Own):
        return f"own {model.version}"
    if model is None:
        return ""
    stat = file_of_machine().stat()
    return f"{stat.st_mtime_ns} {stat.st_size}"
