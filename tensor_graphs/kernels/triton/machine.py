"""machine: what tiles are chosen by, of the device that a tensor is on."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from tensor_graphs.kernels.torch.ops import torch


class Machine(NamedTuple):
    """multiprocessors: blocks of one tile each that run at once.  shared: bytes of fast memory that a block may have."""

    multiprocessors: int = 132
    shared: int = 227 << 10


@functools.cache
def machine(device: Any) -> Machine:
    """The numbers of a device of torch; those of 9.0 where it is no GPU, as in Triton's interpreter."""
    if device.type != "cuda":
        return Machine()
    properties = torch.cuda.get_device_properties(device)
    return Machine(properties.multi_processor_count, getattr(properties, "shared_memory_per_block_optin", 99 << 10))
