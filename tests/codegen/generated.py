"""generated: many programs in one library, and a call of each with arrays: the tests of the renderer pay one compiler run."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from tensor_graphs.codegen.loop_ir import StageProgram
from tensor_graphs.codegen.print import c_loops
from tensor_graphs.devices import c_code, toolchain
from tensor_graphs.kernels.c import library
from tensor_graphs.language import dims as d
from tensor_graphs.language.composite import Definition

HEADERS = Path(c_loops.__file__).parents[1]
GUARD = 64
"""bytes behind each output that must stay as they are"""


class Library:
    """The programs of some definitions, compiled together."""

    def __init__(self, programs: Sequence[StageProgram], per_file: int = 12) -> None:
        texts = [c_loops.rendered(p, f"kernel{i}") for i, p in enumerate(programs)]
        files = [c_code.Text(f"programs{i}.c", "\n".join(texts[i:i + per_file]), HEADERS)
                 for i in range(0, len(texts), per_file)]
        ours = library.load()
        path = toolchain.build_library(files, name="generated", folders=(library.FOLDER,), against=ours.paths("\n".join(texts)),
                                       cache=ours.path.parent)
        self.library = ctypes.CDLL(str(path))
        self.programs = programs

    def run(self, number: int, definition: Definition, arrays: Sequence[np.ndarray], dims: Mapping[str, int],
            shared: Mapping[int, int] = MappingProxyType({})) -> list[np.ndarray]:
        """The outputs of one program for C-contiguous operands. shared: outputs that lie in the memory of an operand, by their
        numbers. Raises AssertionError where it writes behind an output."""
        outs, memory = [], []
        kept = [np.ascontiguousarray(a) for a in arrays]
        for number_of, o in enumerate(definition.outputs):
            shape = tuple(d.evaluate(s, dims) for s in o.shape)
            size = math.prod(shape) * o.dtype.itemsize
            raw = np.full(size + GUARD, 0xA5, np.uint8)
            memory.append((raw, size))
            outs.append(raw[:size].view(o.dtype.numpy).reshape(shape))
            old = shared.get(number_of, dict(self.programs[number].updated).get(number_of))
            if old is not None:                                     # what is updated is there already
                outs[-1][...] = kept[old]
            if number_of in shared:
                kept[shared[number_of]] = outs[-1]
        sizes = [int(dims[str(s)]) for s in self.programs[number].dims]
        pointers = [raw.ctypes.data for raw, _ in memory] + [a.ctypes.data for a in kept]
        function = getattr(self.library, f"kernel{number}")
        function.restype = None
        ints = (ctypes.c_int64 * max(1, len(sizes)))(*sizes)
        function((ctypes.c_void_p * len(pointers))(*pointers), ints, (ctypes.c_double * 1)())
        for raw, size in memory:
            assert (raw[size:] == 0xA5).all(), "it wrote behind an output"
        return outs
