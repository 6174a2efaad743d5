"""requirements: what a kernel asks of the device that runs it, beyond its backend; a kernel whose device lacks it is no candidate.

    requirements={"arch": ["avx512f"]}                      one of these: an architecture, or an instruction set of it
    requirements={"arch": ["sm_90"], "cuda_min": "12.4"}    a GPU of this generation, with this version of CUDA or a newer one
    requirements={"multiprocessors_min": 132}               a GPU on which so many blocks run at once
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tensor_graphs.devices.device import Device
from tensor_graphs.errors import close_to


def _names(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _arch_problem(value: Any) -> str | None:
    names = value if isinstance(value, (str, list, tuple)) else ()
    if names and all(isinstance(name, str) and name for name in _names(names)):
        return None
    return f"is {value!r}\n  fix: the name of an architecture or instruction set, or a list of them, like [\"avx512f\"]"


def _arch_unmet(value: Any, device: Device) -> str | None:
    wanted = _names(value)
    if set(wanted) & device.features():
        return None
    return f"it needs {' or '.join(wanted)}, which this device ({device.name}) has not"


def _cuda_problem(value: Any) -> str | None:
    if isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)*", value):
        return None
    return f"is {value!r}\n  fix: a version as a text, like \"12.4\""


def _cuda_unmet(value: Any, device: Device) -> str | None:
    return f"it needs CUDA {value} or newer, and its device is {device.name}"


def _count_problem(value: Any) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return None
    return f"is {value!r}\n  fix: a number of multiprocessors, like 132"


def _count_unmet(value: Any, device: Device) -> str | None:
    count = int(dict(device.hardware()[2]).get("multiprocessors", "0"))
    return None if count >= value else f"it needs {value} multiprocessors, and this device ({device.name}) has {count}"


KNOWN: Mapping[str, tuple[Callable[[Any], str | None], Callable[[Any, Device], str | None]]] = {
    "arch": (_arch_problem, _arch_unmet), "cuda_min": (_cuda_problem, _cuda_unmet),
    "multiprocessors_min": (_count_problem, _count_unmet)}
"""requirement -> (why a value means nothing, why the device does not meet it)"""


def problem(requirements: Any) -> str | None:
    """None, or why these requirements cannot be understood, with the fix."""
    if not isinstance(requirements, Mapping):
        return f"are {type(requirements).__name__}\n  fix: a dict, like {{\"arch\": [\"avx512f\"]}}"
    for name, value in requirements.items():
        if name not in KNOWN:
            near = close_to(str(name), KNOWN)
            return f"name {name!r}, which nothing here can check\n  fix: " + (
                f"did you mean {near[0]}?" if near else f"one of {', '.join(KNOWN)}")
        wrong = KNOWN[name][0](value)
        if wrong is not None:
            return f"say that {name!r} {wrong}"
    return None


def unmet(requirements: Mapping[str, Any], device: Device) -> str | None:
    """None when the device meets them all, else the first that it does not meet, for people."""
    return next((why for name, value in requirements.items() if (why := KNOWN[name][1](value, device)) is not None), None)
