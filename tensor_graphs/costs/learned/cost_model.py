"""cost_model: access to the learned cost model: by what factor the time of a call differs from its roofline, and how sure that is.

    model = cost_model.of_machine()             # None: no model was trained on this machine (`tg costs train`)
    model.of_call(signature, …)                 # Estimate(off, spread): log(seconds ÷ roofline), and its spread
    cost_model.use(mine, version="mine 1")      # a user's cost model for this process (docs/strategies.md)
    cost_model.of_machine(SCHEDULES)            # the model of generated kernels' schedules: log(seconds ÷ rule-based schedule's)

trees.py defines the model. It is imported only if a model is on file.
"""

from __future__ import annotations

import functools
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from tensor_graphs.argument_checks import switch
from tensor_graphs.devices.cache_folder import CacheFolderError, private_folder, unusable, user_folder
from tensor_graphs.devices.checksummed_files import read
from tensor_graphs.devices.environment import fingerprint

if TYPE_CHECKING:
    from tensor_graphs.costs.learned.trees import Model
    from tensor_graphs.costs.learned.user_model import CallModel, Own

log = logging.getLogger(__name__)

VARIABLE = "TENSOR_GRAPHS_LEARNED_COSTS"
"""Environment variable; "off" makes estimates use rooflines alone."""

CALLS, SCHEDULES = "calls", "schedules"
"""Kinds of models: of calls of kernels, and of schedules of generated kernels."""


def machine() -> str:
    """Return the identity of this machine, as a model stores it."""
    return fingerprint("numpy").machine


def file_of_machine(what: str = CALLS) -> Path:
    """Return the file of this machine's model of a kind. Nothing is created."""
    return user_folder("costs") / f"{machine()[:32]}{'' if what == CALLS else f'-{what}'}.json"


def keep(model: Model, what: str = CALLS) -> Path:
    """Write a model to the file that `of_machine` reads, and use it from now on. Raises CacheFolderError, CacheDiskError."""
    from tensor_graphs.devices.write_checksummed_files import whole_file  # a door: models are mostly read

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
    """Return this machine's model, read once per process; None if there is none or TENSOR_GRAPHS_LEARNED_COSTS is "off". Raises
    ArgumentError if that variable is neither "on" nor "off"."""
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
    """Use a user's cost model in this process from now on; None restores the machine's model.

    version: a key of cached plans; change it whenever the estimates of the model change. The model is called for built-in kernels
    on the host that were not measured. Raises CostModelError.
    """
    from tensor_graphs.costs.learned.user_model import owned  # a door: few have a model of their own

    global _own
    _own = None if model is None else owned(model, version)


def of_calls() -> Own | Model | None:
    """Return the cost model of calls in use: the user's (`use`), else this machine's; None if there is none or it is "off"."""
    if _own is None:
        return of_machine()
    return _own if switch(VARIABLE, unless_said=True) else None


def version() -> str:
    """Return a string that changes with the model in use: a user's version, or time and size of the machine's file; "" for none."""
    model = of_calls()
    if model is not None and model is _own:
        return f"own {_own.version}"
    if model is None:
        return ""
    stat = file_of_machine().stat()
    return f"{stat.st_mtime_ns} {stat.st_size}"
