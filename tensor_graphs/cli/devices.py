"""devices: what this machine can run on."""

from __future__ import annotations

from typing import Any

import typer

from tensor_graphs.cli import options
from tensor_graphs.errors import TensorGraphsError


def register(app: typer.Typer) -> None:
    app.command("devices")(devices)


def devices(db: options.DatabaseAt = None, json: options.Json = False) -> None:
    """The devices here, the backends that can use them (or why not), and measured constants with their age."""
    from tensor_graphs.devices.environment import usable_cores
    from tensor_graphs.kernels.registry import BACKENDS, load_backend, why_missing
    from tensor_graphs.profiling.judge import environment_of
    from tensor_graphs.records import queries

    store = options.database(db)
    rows: list[dict[str, Any]] = []
    for name in sorted(BACKENDS):
        try:
            reason = why_missing(name)
        except TensorGraphsError as e:  # like a cache folder that cannot be made: here it is a finding
            reason = str(e)
        try:
            environment = environment_of(name)
        except Exception:  # anyone's code: what it raised is the reason already
            if reason is None:
                raise
            environment = None
        constants = {} if reason or environment is None else queries.constants(store, environment)
        rows.append(
            {
                "backend": name,
                "available": reason is None,
                "why_not": reason,
                "device": "cpu",
                "kernels": 0 if reason else len(load_backend(name)),
                "software": dict(environment.libs) if environment is not None and reason is None else {},
                "constants": {
                    n: {"value": c.value, "unit": c.unit, "measured": str(c.timestamp)} for n, c in constants.items()
                },
            }
        )
    cpu = environment_of("numpy")
    if json:
        options.print_json(
            {
                "devices": [
                    {
                        "device": "cpu",
                        "name": cpu.hardware_name,
                        "memory_bytes": cpu.memory_bytes,
                        "cores": usable_cores(),
                    }
                ],
                "backends": rows,
            }
        )
        return
    print(f"cpu  {cpu.hardware_name}, {usable_cores()} cores, {cpu.memory_bytes / 2**30:.0f} GiB")
    for r in rows:
        software = ", ".join(f"{k} {v}" for k, v in r["software"].items())
        what = f"{r['kernels']} kernels" if r["available"] else f"missing: {r['why_not']}"
        print(f"  {r['backend']:8s} {what}{f'  ({software})' if software else ''}")
        for constant, found in r["constants"].items():
            print(f"           {constant} {found['value']:.4g} {found['unit']} (measured {found['measured'][:10]})")
