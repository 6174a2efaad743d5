"""device_requirements: features that a kernel needs of its device, beyond its backend. On a device that lacks one the kernel is no
candidate.

    requirements={"arch": ["avx512f"]}                      at least one of the listed architectures or instruction sets
    requirements={"arch": ["sm_90"], "cuda_min": "12.4"}    a GPU of this generation, with this version of CUDA or a newer one
    requirements={"multiprocessors_min": 132}               a GPU with at least this many multiprocessors
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tensor_graphs.devices.device import Device
from tensor_graphs.errors import close_to


def _names(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _names_architectures(value: Any) -> bool:
    return isinstance(value, (str, list, tuple)) and bool(value) and all(isinstance(n, str) and n for n in _names(value))


def _arch_unmet(value: Any, device: Device) -> str | None:
    names = _names(value)
    if set(names) & device.features():
        return None
    return f"it needs {' or '.join(names)}, which this device ({device.name}) has not"


def _count_unmet(value: Any, device: Device) -> str | None:
    count = int(dict(device.hardware()[2]).get("multiprocessors", "0"))
    return None if count >= value else f"it needs {value} multiprocessors, and this device ({device.name}) has {count}"


KNOWN: Mapping[str, tuple[Callable[[Any], bool], str, Callable[[Any, Device], str | None]]] = {
    "arch": (_names_architectures,
             "the name of an architecture or instruction set, or a list of them, like [\"avx512f\"]", _arch_unmet),
    "cuda_min": (lambda value: isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)*", value) is not None,
                 "a version as a text, like \"12.4\"",
                 lambda value, device: f"it needs CUDA {value} or newer, and its device is {device.name}"),
    "multiprocessors_min": (lambda value: isinstance(value, int) and not isinstance(value, bool) and value > 0,
                            "a number of multiprocessors, like 132", _count_unmet)}
"""requirement -> (check of a value, description of valid values, function that returns None or why a device does not meet it)"""


def problem(requirements: Any) -> str | None:
    """Return None, or the reason why these requirements are not valid, with a fix."""
    if not isinstance(requirements, Mapping):
        return f"are {type(requirements).__name__}\n  fix: a dict, like {{\"arch\": [\"avx512f\"]}}"
    for name, value in requirements.items():
        if name not in KNOWN:
            near = close_to(str(name), KNOWN)
            return f"name {name!r}, which nothing here can check\n  fix: " + (
                f"did you mean {near[0]}?" if near else f"one of {', '.join(KNOWN)}")
        is_meaningful, fix, _ = KNOWN[name]
        if not is_meaningful(value):
            return f"say that {name!r} is {value!r}\n  fix: {fix}"
    return None


def unmet(requirements: Mapping[str, Any], device: Device) -> str | None:
    """Return None when the device meets all requirements, else a sentence about the first that it does not meet."""
    return next((why for name, value in requirements.items() if (why := KNOWN[name][2](value, device)) is not None), None)
