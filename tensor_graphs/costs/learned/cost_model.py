"""cost_model: a model fitted to measurements of this machine: how far off its roofline a call is, and how sure that is.

    model = cost_model.of_machine()             # None: none was trained here (`tg costs train`)
    model.of_call(signature, …)              # Estimate(off, spread): log(seconds ÷ roofline), and its spread
    cost_model.use(mine, version="mine 1")      # a cost model of the caller's own, in this process (docs/strategies.md)
    cost_model.of_machine(SCHEDULES)            # likewise of generated kernels' schedules: log(seconds ÷ the rules' schedule's)

trees.py holds the model, and is loaded where there is one.
"""

from __future__ import annotations

import functools
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from tensor_graphs.arguments import switch
from tensor_graphs.devices.cache_folder import CacheFolderError, private_folder, unusable, user_folder
from tensor_graphs.devices.environment import fingerprint
from tensor_graphs.devices.sealed_files import read

if TYPE_CHECKING:
    from tensor_graphs.costs.learned.own_model import CallModel, Own
    from tensor_graphs.costs.learned.trees import Model

log = logging.getLogger(__name__)

VARIABLE = "TENSOR_GRAPHS_LEARNED_COSTS"
"""the environment variable: "off" to estimate by rooflines alone"""

CALLS, SCHEDULES = "calls", "schedules"
"""kinds of models"""


def machine() -> str:
    """Return the machine that a model is of."""
    return fingerprint("numpy").machine


def file_of_machine(what: str = CALLS) -> Path:
    """Return the file of this machine's model; nothing is created."""
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
    """Return this machine's model, read once in a process; None where there is none, or TENSOR_GRAPHS_LEARNED_COSTS is off. Raises
    ArgumentError where that is neither on nor off."""
    if not switch(VARIABLE, unless_said=True):
        return None
    try:
        path = file_of_machine(what)
        if not path.exists():
            return None
        content = read(path)
        if content is None:
            raise ValueError(f"{path} is damaged, or others may write to it (fix: tg costs train)")
        from tensor_graphs.costs.learned.trees import Model  # here, as most machines have none

        model = Model.from_json(json.loads(content))
        if model.machine != machine():
            raise ValueError("it is of another machine")
    except (OSError, CacheFolderError, ValueError) as e:
        log.warning("the learned cost model is left out: %s", e)
        return None
    return model


_own: Own | None = None


def use(model: CallModel | None, version: str = "") -> None:
    """Use a cost model of the caller's own in this process from now on; None: the one of the machine again.

    version: what plans on file depend on; another string whenever the model's answers change. The model is asked about kernels of
    this package on the host that were not measured. Raises CostModelError.
    """
    from tensor_graphs.costs.learned.own_model import owned  # a door: few have a model of their own

    global _own
    _own = None if model is None else owned(model, version)


def of_calls() -> Own | Model | None:
    """Return the cost model of calls that is in use: the caller's own (`use`), else this machine's; None where there is none."""
    if _own is None:
        return of_machine()
    return _own if switch(VARIABLE, unless_said=True) else None


def version() -> str:
    """Return a text that changes with the model in use: an own one's version, or the file's time and size; "" where there is none.
    """
    model = of_calls()
    if model is not None and model is _own:
        return f"own {_own.version}"
    if model is None:
        return ""
    stat = file_of_machine().stat()
    return f"{stat.st_mtime_ns} {stat.st_size}"
