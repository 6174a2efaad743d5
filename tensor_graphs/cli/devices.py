"""devices: the devices of this machine, and their measured speeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensor_graphs.cli import options
from tensor_graphs.errors import TensorGraphsError

if TYPE_CHECKING:
    from tensor_graphs.devices.environment import Environment
    from tensor_graphs.records.rows import DeviceConstant

NO_TRANSFERS = "one device: all backends share its memory, so that nothing is ever copied between devices"


def devices(
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Measure the constants now, whatever the age of those on file (2–4 s; a GPU's 15 more)."),
    ] = False,
    threads: options.Threads = None,
    db: options.DatabaseAt = None,
    json: options.Json = False,
) -> None:
    """The devices here, the backends that can use them (or why not), and measured constants with their age."""
    from tensor_graphs.costs.database_keys import environment_of
    from tensor_graphs.devices.device_registry import HOST
    from tensor_graphs.devices.device_registry import devices as known_devices
    from tensor_graphs.devices.environment import usable_cores
    from tensor_graphs.kernels.registry import BACKENDS, device_of, load_backend, why_missing
    from tensor_graphs.measure.rates.calibration import measure_device
    from tensor_graphs.measure.rates.gpu import no_kernel
    from tensor_graphs.measure.rates.links import NAMES as LINK
    from tensor_graphs.measure.rates.table import FLOPS, flops_kernel
    from tensor_graphs.records import NoDatabase, queries

    try:
        store = options.database(db, create=measure)
    except NoDatabase as e:  # the devices can be shown without a database
        options.note(str(e).partition("\n")[0])
        store = options.database(":memory:")
    rows: list[dict[str, Any]] = []
    here: dict[str, Environment] = {}
    for name in sorted(BACKENDS):
        try:
            reason = why_missing(name)
        except TensorGraphsError as e:  # like a cache folder that cannot be made: here it is a finding
            reason = str(e)
        try:
            environment = environment_of(name, threads)
        except Exception:  # anyone's code: what it raised is the reason already
            if reason is None:
                raise
            environment = None
        if reason is None and environment is not None:
            here[name] = environment
        at = device_of(name).name if reason is None else None
        rows.append(
            {
                "backend": name, "available": reason is None, "why_not": reason, "device": at,
                "kernels": 0 if reason else len(load_backend(name)),
                "software": dict(environment.libs) if environment is not None and reason is None else {},
            }
        )
    if measure:
        with options.status("measuring memory and arithmetic", json):
            measure_device(store, tuple(here), threads=threads, anew=True)
    now = datetime.now(UTC)
    at_home = [name for name in here if device_of(name).is_host]
    constants_of = {name: queries.constants(store, environment, device_of(name).name) for name, environment in here.items()}
    measured = {name: {n: c for n, c in constants.items() if n not in LINK} for name, constants in constants_of.items()}
    refused = {name: {n: why for n in FLOPS if isinstance(why := flops_kernel(name, n), str)} for name in at_home}
    refused |= {name: no_kernel(name) for name in here if device_of(name).kind == "cuda"}
    for row in rows:
        constants = sorted(measured.get(row["backend"], {}).items(), key=_order)
        row["constants"] = {
            n: {"value": c.value, "unit": c.unit, "measured": str(c.timestamp), "age_seconds": _seconds(c, now)}
            for n, c in constants
        }
        row["no_kernel_for"] = refused.get(row["backend"], {})
    cpu = environment_of("numpy", threads)
    links = []
    for name in (r["backend"] for r in rows if r["device"] not in (None, HOST.name)):
        device = device_of(name)
        for way, pair in (("upload", (HOST.name, device.name)), ("download", (device.name, HOST.name))):
            values = {n.removeprefix(f"{way}_"): c.value for n, c in constants_of[name].items() if n in LINK and n.startswith(way)}
            links.append({"from": pair[0], "to": pair[1], "backend": name, **values})
    others = [d for d in known_devices() if d is not HOST]
    if json:
        options.print_json(
            {
                "devices": [
                    {"device": "cpu", "name": cpu.hardware_name, "memory_bytes": cpu.memory_bytes, "cores": usable_cores()},
                    *(
                        {"device": d.name, "name": d.hardware()[0], "memory_bytes": d.hardware()[1], "at_most": dict(d.peaks())}
                        for d in others
                    ),
                ],
                "backends": rows,
                "transfers": links,
                "why_no_transfers": "" if others else NO_TRANSFERS,
            }
        )
        return
    print(f"cpu  {cpu.hardware_name}, {usable_cores()} cores, {cpu.memory_bytes / 2**30:.0f} GiB")
    for d in others:
        name, nbytes, properties = d.hardware()
        words = [name, f"{nbytes / 2**30:.0f} GiB", *(f"{key.replace('_', ' ')} {value}" for key, value in properties)]
        print(f"{d.name}  {', '.join(words)}")
    for r in rows:
        software = ", ".join(f"{k} {v}" for k, v in r["software"].items())
        where = f" on {r['device']}" if r["device"] not in (None, HOST.name) else ""
        what = f"{r['kernels']} kernels{where}" if r["available"] else f"missing: {r['why_not']}"
        print(f"  {r['backend']:8s} {what}{f'  ({software})' if software else ''}")
    for device in (HOST, *others):
        ours = {n: constants for n, constants in measured.items() if constants and device_of(n) is device}
        for line in table(ours, refused, now, device.peaks() if device is not HOST else None, device.name):
            print(line)
    if not others:
        print(f"transfers  none: {NO_TRANSFERS}")
    ways = {(link["from"], link["to"]): link for link in sorted(links, key=lambda link: "latency" in link)}  # backends share them
    for link in ways.values():
        measured_link = f"{link['latency'] * 1e6:.1f} µs + bytes ÷ {link['bandwidth'] / 1e9:.3g} GB/s" if "latency" in link else ""
        print(f"transfers  {link['from']} -> {link['to']}: {measured_link or 'not measured (tg devices --measure)'}")


def table(
    constants_of: Mapping[str, Mapping[str, DeviceConstant]],
    refused: Mapping[str, Mapping[str, str]],
    now: datetime,
    peaks: Mapping[str, float] | None = None,
    device: str = "",
) -> list[str]:
    """Return the lines of a table: speeds of a device's backends, and of its memory by working set, each with its age.

    constants_of: backend -> constants. The memory belongs to the device: it is shown once, from the newest measurement. peaks: for
    a device that is not the host, its theoretical maxima. device: its name.
    """
    from tensor_graphs.costs.measured_rates import FLOPS as F32
    from tensor_graphs.costs.measured_rates import READ, RUN
    from tensor_graphs.measure.rates.gpu import CLOCK, PRODUCTS
    from tensor_graphs.measure.rates.table import CALL, COPY, FLOPS, working_set

    if peaks is None:
        where, heading, flops, unit, scaled, last = "", "", tuple(FLOPS), "Gflop/s", 1e-9, {RUN: "run [µs]"}
    else:
        where, heading, flops = f" of {device}", f"{device}:", (F32, "flops_f64", *PRODUCTS)
        unit, scaled, last = "Tflop/s", 1e-12, {CLOCK: "clock [GHz]"}
    nothing = [f"nothing is measured yet{where}: tg devices --measure"]
    if not constants_of and not peaks:
        return [*nothing, ""]
    columns = {name: f"{name.removeprefix('flops_').replace('_', ' ')} [{unit}]" for name in flops} | {CALL: "call [µs]"} | last
    scale = {**dict.fromkeys(flops, scaled), CALL: 1e6, RUN: 1e6, CLOCK: 1e-9}
    lines = [heading, f"{'speed':12s}" + "".join(f"{title:>{len(title) + 2}s}" for title in columns.values()) + "  measured"]
    if peaks is not None:
        cells = [_number(peaks[n] * scale[n]) if n in peaks else "" for n in columns]
        widths = [len(title) + 2 for title in columns.values()]
        row = "".join(f"{c:>{w}s}" for c, w in zip(cells, widths, strict=True))
        lines.append(f"  at most   {row}  by its clocks and units")
    notes = []
    for backend, constants in constants_of.items():
        cells = []
        for name, title in columns.items():
            why = refused.get(backend, {}).get(name)
            cell = _number(constants[name].value * scale[name]) if name in constants else "none" if why else "?"
            cells.append(f"{cell:>{len(title) + 2}s}")
            notes += [f"  none: {backend} has no kernel for {name}: {why}"] if name not in constants and why else []
        stamps = [c.timestamp for n, c in constants.items() if n in columns and c.timestamp is not None]
        lines.append(f"  {backend:10s}" + "".join(cells) + f"  {_ago(stamps, now)}")
    lines += notes
    newest = max((c for c in constants_of.values() if READ in c), default=None,
                 key=lambda c: c[READ].timestamp or datetime.min.replace(tzinfo=UTC))
    if newest is not None:
        sizes = sorted({size[1] for n in newest if (size := working_set(n)) is not None})
        names = [(_bytes(n), f"[{n} B]") for n in sizes] or [("no cache", "")]
        lines += ["", "memory [GB/s], by bytes that are used again and again"]
        lines.append(" " * 12 + "".join(f"{title:>9s}" for title, _ in names) + "  measured")
        for name, title in ((READ, "read"), (COPY, "copy")):
            values = [newest.get(name + size) for _, size in names]
            stamps = [v.timestamp for v in values if v is not None and v.timestamp is not None]
            cells = [f"{'?' if v is None else f'{v.value / 1e9:.1f}':>9s}" for v in values]
            lines.append(f"  {title:10s}" + "".join(cells) + f"  {_ago(stamps, now)}")
    if peaks is not None and READ in peaks:
        lines.append(f"  at most {peaks[READ] / 1e9:.0f} GB/s of memory, by its clock and width")
    return [*lines, *([] if constants_of else nothing), ""]


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _ago(stamps: Sequence[datetime], now: datetime) -> str:
    """Return the age of the oldest timestamp: `3 days ago`."""
    from tensor_graphs.views.explain import age

    if not stamps:
        return "never"
    passed = age((now - min(stamps)).total_seconds())
    return passed if passed == "just now" else f"{passed} ago"


def _seconds(constant: DeviceConstant, now: datetime) -> float | None:
    return None if constant.timestamp is None else max(0.0, (now - constant.timestamp).total_seconds())


def _order(item: tuple[str, Any]) -> tuple[bool, str, int]:
    """Return a sort key: names without a working set first, then by name and working set."""
    from tensor_graphs.measure.rates.table import working_set

    size = working_set(item[0])
    return (False, item[0], 0) if size is None else (True, *size)


def _bytes(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"
