"""links: measures what copies between the host and another device cost, as latency and bandwidth in each direction.

    upload_latency, download_latency       s        of a copy of 64 bytes, the least of TIMES
    upload_bandwidth, download_bandwidth   byte/s   of LARGE bytes, beyond the latency
"""

from __future__ import annotations

from typing import Final

from tensor_graphs.devices.device import Device, Memory, transfer
from tensor_graphs.devices.device_registry import HOST
from tensor_graphs.measure.rates.table import Speed
from tensor_graphs.measure.timing.clock import now

SMALL, LARGE, TIMES = 64, 8 << 20, 7
WAYS: Final = ("upload", "download")
NAMES = tuple(f"{way}_{what}" for way in WAYS for what in ("latency", "bandwidth"))


def link_speeds(device: Device) -> dict[str, Speed]:
    """Measure the constants of the link between the host and a device (takes some 0.1 s)."""
    speeds = {}
    for way in WAYS:
        latency, large = (_seconds(device, way, nbytes) for nbytes in (SMALL, LARGE))
        speeds[f"{way}_latency"] = Speed(latency, "s")
        speeds[f"{way}_bandwidth"] = Speed(LARGE / max(large - latency, 1e-9), "byte/s")
    return speeds


def _seconds(device: Device, way: str, nbytes: int) -> float:
    ends: list[Memory] = [HOST.allocate(nbytes), device.allocate(nbytes)]
    HOST.fill(ends[0], 0)
    device.fill(ends[1], 0)
    source, into = ends if way == "upload" else reversed(ends)
    taken = []
    for _ in range(TIMES):
        device.synchronise()
        start = now()
        transfer(source, into, HOST)
        device.synchronise()
        taken.append(now() - start)
    return min(taken)
