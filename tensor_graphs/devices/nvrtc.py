"""nvrtc: compiles CUDA C to machine code of one architecture, by NVIDIA's run-time compiler; no device is needed.

In: a text and the folder of the headers that it includes.  Out: a cubin, stored in the private cache folder under the hash of the
text, the headers, the flags and the compiler's version.
"""

from __future__ import annotations

import importlib.util
import logging
import time
from functools import cache
from pathlib import Path
from typing import Any

from tensor_graphs.devices import c_code, checksummed_files, toolchain, write_checksummed_files
from tensor_graphs.devices.cache_folder import user_folder
from tensor_graphs.phase_times import phase

log = logging.getLogger(__name__)

MOST_BYTES = 256 << 20
"""Most bytes of all cubins in the cache; the least recently used ones are removed."""

FLAGS = ("--std=c++17", "--fmad=true", "--extra-device-vectorization")


def why_missing() -> str | None:
    """Return what has to be installed before this compiles anything, as text; None if nothing."""
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
        return "cuda.bindings is not installed (pip install 'tensor_graphs[cuda]')"
    try:
        version()
    except Exception as e:                                          # what it raises where the library is missing is its own
        message = str(e).splitlines()[0] if str(e) else type(e).__name__
        return f"NVRTC cannot be loaded ({message}); pip install 'tensor_graphs[cuda]'"
    return None


@cache
def version() -> str:
    """Return the compiler's version, like "13.0"."""
    major, minor = _checked(_nvrtc().nvrtcVersion(), "nvrtcVersion")
    return f"{major}.{minor}"


def made_with(header: Path) -> str:
    """Return the identity of everything but the text with which a text that includes this header is compiled."""
    if why_missing() is not None:
        return "no NVRTC"
    texts = [file.read_bytes() for file in (header, *c_code.headers_of(header))]
    return f"{toolchain.digest(*texts)[:32]} nvrtc {version()} {' '.join(FLAGS)}"


@phase("compile CUDA")
def compiled(text: str, architecture: str, headers: Path, *, cache: Path | None = None, name: str = "generated.cu") -> bytes:
    """Return the cubin of a text for an architecture like "sm_90". name: of the text, in the compiler's messages. Raises
    ToolchainError (with the compiler's messages), CacheFolderError."""
    source = c_code.Text("generated.cu", text, headers)
    included = c_code.headers_of(source)
    parts = [part for file in included for part in (file.name, file.read_bytes())]
    identity = toolchain.digest(text, *parts, *FLAGS, architecture, version())[:32]
    path = checksummed_files.place(cache or user_folder("native"), f"cuda-{identity}.cubin")
    cubin = checksummed_files.read(path)
    if cubin is None:
        begun = time.perf_counter()
        cubin = _compile(text, architecture, included, name)
        write_checksummed_files.keep(path, [cubin], MOST_BYTES)
        log.info("compiled %s in %.2f s", path.name, time.perf_counter() - begun)
    return cubin


def _compile(text: str, architecture: str, headers: tuple[Path, ...], called: str) -> bytes:
    nvrtc = _nvrtc()
    contents = [file.read_bytes() for file in headers]
    names = [file.name.encode() for file in headers]
    result = nvrtc.nvrtcCreateProgram(text.encode(), called.encode(), len(headers), contents, names)
    program = _checked(result, "nvrtcCreateProgram")
    try:
        flags = [f"--gpu-architecture={architecture}".encode(), *(f.encode() for f in FLAGS)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            size = _checked(nvrtc.nvrtcGetProgramLogSize(program), "nvrtcGetProgramLogSize")
            output = b" " * size
            _checked(nvrtc.nvrtcGetProgramLog(program, output), "nvrtcGetProgramLog")
            why = output.decode(errors="replace").strip()
            unknown = "could not open source file" in why
            fix = '\n  fix: NVRTC has no headers of the system; "numbers.cuh" is there' if unknown else ""
            raise c_code.ToolchainError(f"cannot compile {called} for {architecture}:\n{why}{fix}")
        size = _checked(nvrtc.nvrtcGetCUBINSize(program), "nvrtcGetCUBINSize")
        cubin = b" " * size
        _checked(nvrtc.nvrtcGetCUBIN(program, cubin), "nvrtcGetCUBIN")
        return cubin
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _nvrtc() -> Any:
    from cuda.bindings import nvrtc

    return nvrtc


def _checked(result: tuple[Any, ...], what: str) -> Any:
    status, *values = result
    if int(status) != 0:
        raise c_code.ToolchainError(f"{what} failed: {status.name}")
    return values[0] if len(values) == 1 else tuple(values)
