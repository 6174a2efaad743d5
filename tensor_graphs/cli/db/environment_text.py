"""environment_text: describes an environment on one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensor_graphs.devices.environment import Environment


def place_in_words(environment: Environment) -> str:
    """Return the hardware, with what distinguishes machines with the same processor and environments of one machine."""
    cores = dict(environment.hardware).get("cores")
    threads = dict(environment.libs).get("threads")
    memory = f"{environment.memory_bytes >> 30} GiB" if environment.memory_bytes else ""
    parts = (environment.hardware_name, f"{cores} cores" if cores else "", memory, environment.backend,
             f"{threads} threads" if threads else "")
    return ", ".join(filter(None, parts))
