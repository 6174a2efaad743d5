"""device_registry: the registry of devices in this process. The host is always registered; others are added, like backends."""

from __future__ import annotations

import importlib

from tensor_graphs.devices.cpu import CPU
from tensor_graphs.devices.device import Device, DeviceError, UnknownDevice

HOST: Device = CPU
"""The device whose memory holds the caller's arrays."""

_devices: dict[str, Device] = {HOST.name: HOST}

MAKERS = {"cuda": "tensor_graphs.devices.cuda"}
"""For each kind of device the module whose `make_known(index)` registers one; imported when such a device is requested."""


def register_device(device: Device) -> Device:
    """Register a device under its name, and return the registered one, which is the first: a module that is imported twice
    registers once. Raises DeviceError when the name belongs to a device of another class."""
    registered = _devices.setdefault(device.name, device)
    if type(registered).__qualname__ != type(device).__qualname__:
        raise DeviceError(f"the device {device.name!r} is a {type(registered).__qualname__} already, and this is a "
                          f"{type(device).__qualname__}\n  fix: another name")
    return registered


def unregister_device(name: str) -> None:
    """Remove a device registered by `register_device`."""
    if name != HOST.name:
        _devices.pop(name, None)


def devices() -> tuple[Device, ...]:
    """Return all registered devices, the host first."""
    return tuple(_devices.values())


def device_named(name: str) -> Device:
    """Return the device of this name, registering it if possible. Raises UnknownDevice, with the names of those that exist."""
    kind, _, index = str(name).partition(":")
    numbered = kind in MAKERS and index.isdecimal()
    try:
        if name not in _devices and numbered:
            _registered(kind, int(index))
        return _devices[name]
    except (KeyError, TypeError):
        text = str(name).lower()
        maker = kind if numbered else "cuda" if text.startswith(("cuda", "gpu", "nvidia")) else ""
        missing = (maker and importlib.import_module(MAKERS[maker]).why_missing(int(index) if numbered else 0)) or ""
        meant = f"{maker}:0 is how a GPU is named" if maker and not numbered else f"one of those{missing and ', or this one'}"
        raise UnknownDevice(f"no device is named {name!r}; this machine has {all_names()}{missing and f' ({missing})'}\n"
                            f"  fix: {meant}{missing and ', once that is installed'}; tg devices lists all") from None


def of_kind(kind: str) -> Device | None:
    """Return the first device of this kind, on which backends of the kind compute; None where there is none."""
    return next((d for d in _devices.values() if d.kind == kind), None) or (_registered(kind, 0) if kind in MAKERS else None)


def _registered(kind: str, index: int) -> Device | None:
    device: Device | None = importlib.import_module(MAKERS[kind]).make_known(index)
    return device


def all_names() -> str:
    """Return the names of all devices as one text."""
    return ", ".join(repr(name) for name in _devices)
