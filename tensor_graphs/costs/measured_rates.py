"""measured_rates: measured rates of this machine's memory, arithmetic and links. measure/rates/calibration.py files them."""

from __future__ import annotations

from collections.abc import Sequence

from tensor_graphs.costs.database_keys import environment_of
from tensor_graphs.costs.roofline import DeviceRates, LinkRates
from tensor_graphs.devices.device import Device
from tensor_graphs.devices.device_registry import HOST
from tensor_graphs.devices.environment import Environment
from tensor_graphs.kernels.registry import device_of, why_missing
from tensor_graphs.records.database import Database
from tensor_graphs.records.measurements import constants
from tensor_graphs.records.rows import DeviceConstant

READ, FLOPS, RUN = "read_bandwidth", "flops_f32", "run_overhead"
"""Names of the constants, in the database table device_constants, from which estimates are computed."""

BEATEN = 1.1
"""Ratio to the measured flop/s from which a faster matrix product shows that the constant was measured on a busy machine."""


def known_rates(database: Database, backends: Sequence[str], threads: int | None = None) -> DeviceRates | None:
    """Return the best rates that these backends measured on this machine; None if none of them measured any."""
    return rates_in(database, [environment_of(b, threads) for b in backends if why_missing(b) is None])


def prior_rates(device: Device) -> DeviceRates:
    """Return assumed rates of a device that was not measured: the peak rates that its driver reports, those of a small GPU for what
    the driver does not report, and those of a small CPU if there are no peaks at all."""
    peaks = device.peaks()
    return DeviceRates(peaks.get(READ, 3e11), peaks.get(FLOPS, 1e13)) if peaks else DeviceRates()


def rates_in(database: Database, environments: Sequence[Environment]) -> DeviceRates | None:
    """Return the best measured rates in these environments; None if there are none."""
    rows = [constants(database, environment, device_of(environment.backend).name) for environment in environments]
    bandwidth = max((r[READ].value for r in rows if READ in r), default=None)
    flops = max((r[FLOPS].value for r in rows if FLOPS in r), default=None)
    if bandwidth is None or flops is None:
        return None
    run = min((r[RUN].value for r in rows if RUN in r), default=DeviceRates.run_seconds)
    return DeviceRates(bandwidth, flops, run)


def known_links(database: Database, device: Device, backends: Sequence[str],
                threads: int | None = None) -> dict[tuple[str, str], LinkRates]:
    """Return the costs of copies in both directions between the host and a device, from the first backend that measured any."""
    rows = [constants(database, environment_of(b, threads), device.name) for b in backends]
    measured = next((list(r.values()) for r in rows if r), [])
    return {(HOST.name, device.name): link_of(measured, "upload"), (device.name, HOST.name): link_of(measured, "download")}


def link_of(constants: Sequence[DeviceConstant], way: str) -> LinkRates:
    """Return the measured rates of one direction of a link, "upload" or "download"; defaults for those that were not measured."""
    values = {c.name: c.value for c in constants}
    prior = LinkRates()
    return LinkRates(values.get(f"{way}_latency", prior.latency), values.get(f"{way}_bandwidth", prior.bandwidth))
