"""emulated: generated CUDA as C++ for the host, to see without a GPU what it computes.

The threads of a block take turns, in two orders. It shows wrong indices, wrong math, barriers that not all threads come to,
and what depends on the order of threads between two barriers. It shows nothing of speed, of blocks that run at once, or of what
the compiler for the GPU makes of it.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from tensor_graphs.codegen.backend_cuda import HEADER, call_of
from tensor_graphs.devices.cache_folder import user_folder
from tensor_graphs.devices.checksummed_files import place
from tensor_graphs.devices.toolchain import digest
from tensor_graphs.kernels.kernel import LaunchCall
from tensor_graphs.language import dims as d
from tensor_graphs.language.composite import Definition

HERE = Path(__file__).resolve().parent
GUARD = 64
"""bytes behind each output that must stay as they are"""

_ASM = re.compile(r'asm\("([a-zA-Z0-9_.]+) %0[^"]*" : "=\w"\((\w+)\) : (.*?)\);')


FILLS = (0xFF, 0x7F)
"""what the memory that a block's threads share holds at first, in one order of threads and the other"""

# threads take turns by jumps from stack to stack, which compilers that fortify by default take for a fault
FLAGS = ("-std=c++17", "-w", "-fno-strict-aliasing", "-ffp-contract=off", "-shared", "-fPIC", "-U_FORTIFY_SOURCE")

HIDDEN = 64
"""of emulated_block.cpp: arrays that hold other bytes until they are waited for, at most"""


def on_host(text: str) -> str:
    """A text for CUDA with what only CUDA has said otherwise."""
    def instruction(found: re.Match[str]) -> str:
        given = re.sub(r'"\w"\(', "(", found[3])
        return f"{found[2]} = ptx_{found[1].replace('.', '_')}({given});"

    text = text.replace('#include "numbers.cuh"', _ASM.sub(instruction, HEADER.read_text()))
    text = text.replace("TG_INLINE void after_those_before() {", "TG_INLINE void after_those_before() {\n    tg_waited();")
    return text.replace("extern __shared__ __align__(16) char rows[];", "char *const rows = tg_rows;")


@cache
def _threads() -> Path:
    """Return the library that takes turns with threads; it is compiled once for this user, not for each test's folder."""
    source = HERE / "emulated_block.cpp"
    built = place(user_folder("tests"), f"emulated_block-{digest(source.read_text(), *FLAGS)[:24]}.so")
    if not built.exists():
        with tempfile.TemporaryDirectory(dir=built.parent) as folder:
            _compile(Path(folder, built.name), source, "-O1")
            os.replace(Path(folder, built.name), built)
    return built


def _compile(built: Path, source: Path, *more: Path | str) -> None:
    """more: flags, and what it is linked with."""
    command = ["g++", *FLAGS, f"-I{HEADER.parent}", "-o", built, source, *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stderr[:3000]}\n{source.read_text()}"


@cache
def _library(text: str, entries: tuple[str, ...], words: int, folder: Path) -> ctypes.CDLL:
    name = digest(text + " ".join(entries))[:24]
    built = folder / f"{name}.so"
    source = folder / f"{name}.cpp"
    calls = "".join(f'extern "C" void call_{e}(const unsigned long long *w) '
                    f'{{ {e}({", ".join(f"Word{{w[{i}]}}" for i in range(words))}); }}\n' for e in entries)
    source.write_text(f'#include "{HERE / "emulated_shim.h"}"\n{on_host(text)}\n{calls}')
    # most of a text runs a few times: what a compiler would make faster takes it longer, and so does looking through libraries, as
    # all that is called of them is in this process
    _compile(built, source, _threads(), "-Og", "-nostdlib")
    return ctypes.CDLL(str(built))


def run(folder: Path, definition: Definition | LaunchCall, outputs: Sequence[tuple[tuple[int, ...], np.dtype]],
        arrays: Sequence[np.ndarray], dims: Mapping[str, int], shift: int = 0) -> list[np.ndarray]:
    """The outputs for C-contiguous operands. shift: elements by which everything is moved off its alignment. Raises AssertionError
    where it writes behind an output or its scratch, where threads wait in vain, or where the order of threads makes a difference.
    What launches before write holds other bytes until it is waited for."""
    call = definition if isinstance(definition, LaunchCall) else call_of(definition)
    found = [_once(folder, call, outputs, arrays, dims, shift, order) for order in (0, 1)]
    for a, b in zip(*found, strict=True):
        assert a.tobytes() == b.tobytes(), "the order of threads makes a difference"
    return found[0]


def _once(folder: Path, call: LaunchCall, outputs: Sequence[tuple[tuple[int, ...], np.dtype]], arrays: Sequence[np.ndarray],
          dims: Mapping[str, int], shift: int, order: int) -> list[np.ndarray]:
    outs = [_aligned(int(np.prod(shape)) * kind.itemsize + GUARD, shift * kind.itemsize) for shape, kind in outputs]
    ins = []
    for a in arrays:
        ins.append(_aligned(a.nbytes, shift * a.itemsize))
        ins[-1][...] = np.ascontiguousarray(a).reshape(-1).view(np.uint8)
    given = [o.ctypes.data for o in (*outs, *ins)]
    form = call.otherwise if call.otherwise is not None and any(a % call.alignment for a in given) else call
    pieces = [_aligned(int(d.evaluate(p, dims)) + GUARD, 0) for p in form.pieces]
    sizes = np.array([int(d.evaluate(i, dims)) for i in form.ints], np.int64)
    words = np.array([*given, *([sizes.ctypes.data] if form.ints else []), *(p.ctypes.data for p in pieces)], np.uint64)
    library = _library(form.text, tuple(each.entry for each in form.launches), len(words), folder)
    held = list[np.ndarray]()
    for each in form.launches:
        entry = ctypes.cast(getattr(library, f"call_{each.entry}"), ctypes.c_void_p)
        grid = int(d.evaluate(each.grid, dims))
        library.tg_fill_shared(FILLS[order])
        if each.waits and grid > 0:
            later = [*outs, *(a for k, a in enumerate(ins) if k not in each.early), *pieces]
            held = _hide(library, later)
        wrong = library.tg_run(entry, words.ctypes.data_as(ctypes.c_void_p), grid, each.block, each.shared, order,
                               FILLS[order], 1)
        hidden = ctypes.c_uint.in_dll(library, "tg_hiding")
        waited, hidden.value = not hidden.value, 0
        assert wrong != 1, f"threads of {each.entry} wait for each other at different barriers\n{form.text}"
        assert not wrong, f"{each.entry} reads or writes where nothing is\n{form.text}"
        assert waited, f"{each.entry} never waits for the launches before\n{form.text}"
        del held[:]
    for raw, (_, _kind) in zip(outs, outputs, strict=True):
        assert (raw[-GUARD:] == 0xA5).all(), f"it wrote behind an output\n{form.text}"
    assert all((raw[-GUARD:] == 0xA5).all() for raw in pieces), f"it wrote behind its scratch\n{form.text}"
    return [raw[:-GUARD].view(kind).reshape(shape) for raw, (shape, kind) in zip(outs, outputs, strict=True)]


class _Hidden(ctypes.Structure):
    _fields_ = (("at", ctypes.c_void_p), ("bytes", ctypes.c_void_p), ("count", ctypes.c_uint64))


def _hide(library: ctypes.CDLL, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Have memory hold other bytes until a launch waits for those before it, as if they were still at work. -> what it held, to be
    kept until then."""
    assert len(arrays) <= HIDDEN
    held = [a.copy() for a in arrays]
    places = (_Hidden * HIDDEN).in_dll(library, "tg_hidden")
    for hidden, a, kept in zip(places, arrays, held, strict=False):
        hidden.at, hidden.bytes, hidden.count = a.ctypes.data, kept.ctypes.data, a.nbytes
        a[...] = 0xC3
    ctypes.c_uint.in_dll(library, "tg_hiding").value = len(held)
    return held


def _aligned(nbytes: int, shift: int) -> np.ndarray:
    """Bytes, `shift` of them after a multiple of 256."""
    raw = np.full(nbytes + shift + 256, 0xA5, np.uint8)
    at = -raw.ctypes.data % 256 + shift
    return raw[at:at + nbytes]
