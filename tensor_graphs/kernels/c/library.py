"""library: compiling and loading (ctypes) of the C kernels; access to their addresses, the runner and the thread pool.

There are several libraries: a small core (the pool, the runner), compiled at first use, against which all others are linked, and
one for each other C file, compiled when it is needed, or ahead by threads (`AHEAD`)."""

from __future__ import annotations

import ctypes
import functools
import logging
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tensor_graphs.devices import c_code, cache_folder, toolchain
from tensor_graphs.devices.checksummed_files import holds
from tensor_graphs.phase_times import phase

log = logging.getLogger(__name__)

FOLDER = Path(__file__).resolve().parent
MAX_PTR, MAX_INT, MAX_FLOAT = 16, 32, 8
_SHARED = re.compile(r"^TG_API [\w *]*?\b(tg_\w+)\(", re.MULTILINE)
_DECLARATION = re.compile(r"^(?:TG_KERNEL|ROWS_KERNEL|PAIRS|TABLE)\((tg_\w+)", re.MULTILINE)


class Step(ctypes.Structure):
    """One step of the runner's list, the mirror of `tg_step` in tg.h (their sizes are compared when the library loads)."""

    _fields_ = (("fn", ctypes.c_void_p), *((name, ctypes.c_int32) for name in ("n_ptr", "n_int", "n_float", "_pad")),
                ("ptr_base", ctypes.c_int32 * MAX_PTR), ("ptr_offset", ctypes.c_int32 * MAX_PTR),
                ("ints", ctypes.c_int32 * MAX_INT), ("floats", ctypes.c_double * MAX_FLOAT))


CORE = ""
"""name of the core library, against which all others are linked"""

IN_CORE = ("pool.c", "runner.c", "tiles.c")
"""C files of the core, which every process needs, also for generated kernels alone. Compiling them takes a quarter of a second and
shows whether the compiler works. A search for a path waits for the core, and for no other library"""

TOGETHER = dict.fromkeys(("depthwise.c", "direct_conv.c"), "convolutions")
"""C file -> name of the library that it shares with other files, as they call functions of each other that are not exported"""

AHEAD = ("gemm", "movement", "product", "attention", "screened_argmax", "rms_norm", "rope_table")
"""libraries that language models use besides generated kernels, in the order in which threads compile them ahead of need. All other
libraries are a third of the compile time. For other graphs `compile_ahead` of backend.py selects libraries by the graph's ops"""


def part_of(path: Path) -> str:
    """Return the name of the library that a C file belongs to."""
    return CORE if path.name in IN_CORE else TOGETHER.get(path.name, path.stem)


def sources(part: str | None = None) -> tuple[Path, ...]:
    """Return the C files of a library (None: of all libraries), in name order."""
    return tuple(path for path in sorted(FOLDER.glob("*.c")) if part is None or part_of(path) == part)


def linked_with(part: str) -> list[str]:
    """Return the libraries besides the core that library `part` is linked against, such as the one with matrix products."""
    if part == CORE:
        return []
    return sorted({part_of(file) for path in sources(part) for file in code_of(path)} - {part, CORE})


@functools.cache
def symbol_sources() -> dict[str, Path]:
    """Return kernel symbol -> C file that declares it, for all symbols. It is read from the sources, so it is never stale."""
    return {symbol: path for path in sources() for symbol in _DECLARATION.findall(path.read_text())}


@functools.cache
def _shared_sources() -> dict[str, Path]:
    """Return exported function or kernel -> its C file. A header declares the exported functions of the C file of the same name."""
    declared = {symbol: header.with_suffix(".c") for header in sorted(FOLDER.glob("*.h"))
                for symbol in _SHARED.findall(header.read_text())}
    return {**{symbol: path for symbol, path in declared.items() if path.is_file()}, **symbol_sources()}


def called_by(text: str) -> tuple[Path, ...]:
    """Return the C files, outside the core, of the built-in functions whose names occur in a C text."""
    shared = _shared_sources()
    files = {shared[name] for name in re.findall(r"\btg_\w+", text) if name in shared}
    return tuple(sorted(path for path in files if part_of(path) != CORE))


ENTRY = "tg_entry"
"""variable with the kernel's address, in the library of a user-registered kernel"""


def code_of(path: Path) -> tuple[Path, ...]:
    """Return a C file and the other C files whose code its kernels use: that of each included header (gemm.c for gemm.h), and
    pool.c, which splits a kernel's work between threads and gives it scratch memory. runner.c is left out: no kernel calls it."""
    files = [path]
    for file in files:
        declared = (h.with_name("pool.c") if h.name == "tg.h" else h.with_suffix(".c") for h in c_code.headers_of(file))
        files += [c for c in declared if c.is_file() and c not in files]
    return tuple(files)


def identity_of(path: Path, own: Callable[[Path], str] = toolchain.source_identity,
                files: Callable[[Path], Iterable[Path]] = code_of) -> str:
    """Return the identity of the kernels that a C file declares: the identities (text, headers, flags, compiler, processor) of the
    file and of the other files in `code_of`. own, files: cached forms of both functions, for calls about many files."""
    return " ".join(map(own, files(path)))


@dataclass(frozen=True)
class Tile:
    """The tile of a matrix product that is kept in registers: `rows` of the left operand by `lanes` of the packed right operand."""

    rows: int
    lanes: int


class NativeLibrary:
    """The loaded core library and the other libraries next to it. Methods release the interpreter lock while native code runs."""

    def __init__(self, path: Path, *, portable: bool = False, cc: str | None = None) -> None:
        """Load the core. path: its file. portable, cc: as in `build`, for the other libraries, which are compiled next to it."""
        self.path = path
        self._lib = _loaded(path)
        self._parts = {CORE: self._lib}
        self._how: dict[str, Any] = {"portable": portable, "cc": cc}
        self._coming: dict[str, _Compiling] = {}
        self._images: dict[str, ctypes.CDLL] = {}
        integers, pointer = ctypes.POINTER(ctypes.c_int64), ctypes.c_void_p
        for name, result, arguments in (
            ("tg_threads", ctypes.c_int, []), ("tg_default_threads", ctypes.c_int, []), ("tg_set_threads", None, [ctypes.c_int]),
            ("tg_step_size", ctypes.c_int64, []), ("tg_scratch_watch", ctypes.c_int64, []),
            ("tg_tile_f32", ctypes.c_int, [ctypes.c_int]), ("tg_tile_f64", ctypes.c_int, [ctypes.c_int]),
            ("tg_pairs", ctypes.c_int, []), ("tg_four_bytes", ctypes.c_int, []),
            ("tg_run", ctypes.c_int, [pointer, ctypes.c_int64, pointer, integers]), ("tg_run_at", ctypes.c_int, [pointer]),
            ("tg_run_profiled", ctypes.c_int, [pointer, ctypes.c_int64, pointer, integers, ctypes.POINTER(ctypes.c_double)])):
            function = getattr(self._lib, name)
            function.restype, function.argtypes = result, arguments
        size = int(self._lib.tg_step_size())
        if size != ctypes.sizeof(Step):
            raise c_code.ToolchainError(f"{path}: a step has {size} bytes there and {ctypes.sizeof(Step)} here")

    def address(self, symbol: str, image: str = "") -> int:
        """Return the address of a kernel, for `Step.fn`. image: its library (`NativeCall.image`), loaded at first use. Raises
        KeyError for a symbol that no built-in source declares; ToolchainError when the library cannot be built or loaded."""
        if image:
            return self._entry(image, symbol)
        if symbol not in symbol_sources():
            raise KeyError(f"no kernel {symbol!r} among the sources in {FOLDER.name}/; there are {sorted(symbol_sources())}")
        place = ctypes.cast(getattr(self.part(part_of(symbol_sources()[symbol])), symbol), ctypes.c_void_p).value
        assert place is not None
        return place

    def begin(self, *parts: str) -> None:
        """Start a thread for each of these libraries that compiles it, dependencies first; skip those compiled or begun before."""
        for part in parts:
            self.begin(*linked_with(part))
            with _LOCK:
                if part not in self._parts and part not in self._coming:
                    self._coming[part] = _Compiling(partial(self._make, part))

    def _make(self, part: str) -> Path:
        against = [self.path, *map(self._file, linked_with(part))]
        with _COMPILERS:
            return _compiled(part, against=against, cache=self.path.parent, **self._how)

    def _file(self, part: str) -> Path:
        """Return the file of a library, which is compiled now unless that is done. Raises ToolchainError."""
        if part not in self._parts:
            self.begin(part)
        return Path(self._parts[part]._name) if part in self._parts else self._coming[part].result()

    def settle(self) -> None:
        """Wait until all compiling threads have ended, also those that fail."""
        for coming in tuple(self._coming.values()):
            coming.wait()

    @phase("compile C")
    def part(self, name: str) -> ctypes.CDLL:
        """Return a library, loaded; it is compiled now unless that is done. Raises ToolchainError, after a failed compilation at
        every call: the process continues without the library."""
        if name not in self._parts:
            path = self._file(name)
            if not holds(path):                                     # since it was compiled
                path = self._make(name)
            self._parts[name] = _loaded(path)
        return self._parts[name]

    def paths(self, text: str) -> list[Path]:
        """Return the files to link C code against that calls built-in functions: the core, and the libraries of the functions that
        the text names, compiled now unless that is done. Raises ToolchainError."""
        parts = sorted({part_of(path) for path in called_by(text)})
        self.begin(*parts)
        return [self.path, *map(self._file, parts)]

    def _entry(self, image: str, symbol: str) -> int:
        """Return the address of a kernel in a library that is linked against the core and so runs on its thread pool. The address
        is in the variable ENTRY, or, in a library of several kernels, that of `symbol`."""
        if image not in self._images:
            make_now([image])
            self._images[image] = _loaded(Path(image))
        try:
            place = ctypes.c_void_p.in_dll(self._images[image], ENTRY).value
        except ValueError:                                          # no such variable
            place = ctypes.cast(getattr(self._images[image], symbol), ctypes.c_void_p).value
        assert place is not None
        return place

    def call(self, symbol: str, pointers: Sequence[int | None], ints: Sequence[int] = (), floats: Sequence[float] = ()) -> None:
        """Call one kernel with raw addresses (outputs first; None is NULL), sizes (missing ones are 0) and scalars."""
        function = _KERNEL(self.address(symbol))
        function((ctypes.c_void_p * max(1, len(pointers)))(*pointers), (ctypes.c_int64 * MAX_INT)(*ints),
                 (ctypes.c_double * max(1, len(floats)))(*floats))

    def run(self, steps: ctypes.Array[Step], bases: Sequence[int], values: Sequence[int]) -> None:
        """Run a list of steps once, with the addresses and integers that they refer to. Raises ValueError for a malformed step."""
        base_array = (ctypes.c_void_p * max(1, len(bases)))(*bases)
        value_array = (ctypes.c_int64 * max(1, len(values)))(*values)
        status = self._lib.tg_run(steps, len(steps), base_array, value_array)
        if status:
            raise ValueError(f"step {status - 1} is malformed: no function, or more operands than a step can hold")

    def runner(self, name: str = "tg_run") -> Any:
        """Return a function of runner.c (by default the runner) as a ctypes function, for callers with prepared arguments."""
        return getattr(self._lib, name)

    def threads(self) -> int:
        """Return the number of threads of the process's pool, the calling one included."""
        return int(self._lib.tg_threads())

    def default_threads(self) -> int:
        """Return the default number of threads: those that the affinity mask allows, at most the cgroup's CPU quota."""
        return int(self._lib.tg_default_threads())

    def tile(self, itemsize: int) -> Tile:
        """Return the register tile of matrix products in f32 (itemsize 4) or f64 (8), as the core was compiled."""
        axis = self._lib.tg_tile_f64 if itemsize == 8 else self._lib.tg_tile_f32
        return Tile(int(axis(0)), int(axis(1)))

    def pairs(self) -> bool:
        """Return whether products of two bf16 operands are made by pairs, as the core was compiled."""
        return bool(self._lib.tg_pairs())

    def four_bytes(self) -> bool:
        """Return whether an instruction adds products of four bytes, as the core was compiled."""
        return bool(self._lib.tg_four_bytes())

    def scratch_watch(self) -> int:
        """Return the bytes of scratch memory that kernels have requested since the last call of this method, on all threads."""
        return int(self._lib.tg_scratch_watch())

    def set_threads(self, count: int) -> None:
        """Set the number of threads, the calling one included; 0 means the default. Waits for a running kernel."""
        self._lib.tg_set_threads(count)


_LATER: dict[str, Callable[[Sequence[str]], None]] = {}
"""path of an image -> function that builds it, called with a list of paths"""


def make_later(image: str, make: Callable[[Sequence[str]], None]) -> None:
    """Register a library that does not exist yet. When it is loaded, or by `make_now`, `make` is called with the paths of all
    images that are needed together."""
    _LATER[image] = make


def make_now(images: Iterable[str]) -> None:
    """Build those of these libraries that `make_later` registered and that are missing or damaged. Raises ToolchainError."""
    of: dict[Callable[[Sequence[str]], None], list[str]] = {}
    for image in dict.fromkeys(images):
        if image in _LATER and not holds(Path(image)):
            of.setdefault(_LATER[image], []).append(image)
    for make, wanted in of.items():
        make(wanted)


def _loaded(path: Path) -> ctypes.CDLL:
    """Load a library of the cache folder. Raises ToolchainError. A damaged library is detected before the system's loader reads it,
    which could end the process."""
    try:
        if not holds(path):
            raise OSError("it is not what was compiled, or needs another library that is not")
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise c_code.ToolchainError(f"{path} cannot be loaded: {error}\n  fix: remove it; it is compiled again") from error


class _Compiling:
    """A thread that runs `make` and keeps its result. It is a daemon thread, so the process can end before it."""

    def __init__(self, make: Callable[[], Path]) -> None:
        self._make, self._result = make, list[Path | Exception]([c_code.ToolchainError("the thread that compiles was ended")])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = [self._make()]
        except Exception as error:
            self._result = [error]

    def wait(self) -> None:
        self._thread.join()

    def result(self) -> Path:
        self.wait()
        (result,) = self._result
        if isinstance(result, Exception):
            raise result
        return result


def _compiled(part: str, *, against: Sequence[Path] = (), portable: bool = False, cache: Path | None = None,
              cc: str | None = None) -> Path:
    name = "_".join(word for word in ("tensor_graphs_c", part) if word)
    return toolchain.build_library(sources(part), name=name, against=against, portable=portable, cache=cache, cc=cc)


_KERNEL = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_double))
_LOCK = threading.Lock()
_COMPILERS = threading.BoundedSemaphore(2)
"""limit of two libraries that are compiled simultaneously"""
_LOADED: NativeLibrary | None = None


def build(*, portable: bool = False, cache: Path | None = None, cc: str | None = None) -> NativeLibrary:
    """Compile (unless cached) and load a core library other than that of `load()`; it has a separate thread pool."""
    return NativeLibrary(_compiled(CORE, portable=portable, cache=cache, cc=cc), portable=portable, cc=cc)


def load() -> NativeLibrary:
    """Return the process's library; the first call compiles and loads it. Raises ToolchainError."""
    global _LOADED  # one pool per process, hence one library
    if _LOADED is None:
        with phase("compile C"), _LOCK:
            if _LOADED is None:
                _LOADED = build()
    return _LOADED


def ahead(parts: Sequence[str] = AHEAD) -> threading.Thread:
    """Start a thread that compiles the core, then starts threads for these libraries, and ends; return it. The next use of a
    library raises the error of its compilation."""
    def make() -> None:
        with suppress(c_code.ToolchainError, OSError):
            load().begin(*parts)

    thread = threading.Thread(target=make, daemon=True)
    thread.start()
    return thread


def begin_those_of(symbols: Iterable[str]) -> None:
    """Start threads that compile the libraries of these kernels, unless they are compiled."""
    parts = {part_of(symbol_sources()[symbol]) for symbol in symbols} - {CORE}
    if parts:
        load().begin(*sorted(parts))


def settle() -> None:
    """Wait until no thread compiles: the compiler's processes could be mistaken for processes that a watched kernel started."""
    if _LOADED is not None:
        _LOADED.settle()


def why_missing(part: str) -> str | None:
    """Return None when the kernels of a library can run on this machine, else the reason. Compiles the library if necessary."""
    try:
        load().part(part)
    except cache_folder.CacheFolderError:
        raise
    except c_code.ToolchainError as error:
        return str(error)
    return None


def available() -> tuple[bool, str]:
    """Return whether C kernels can run on this machine, and why (not). Compiles the core at the first call if there is a compiler.
    Raises CacheFolderError: the owner has to make the cache folder private; slower kernels would hide that."""
    try:
        return True, f"compiled: {load().path.name}"
    except cache_folder.CacheFolderError:
        raise
    except (c_code.ToolchainError, OSError) as error:
        return False, str(error)


def set_threads(count: int) -> None:
    """Set the number of threads of the process's pool; 0 means the default."""
    load().set_threads(count)
