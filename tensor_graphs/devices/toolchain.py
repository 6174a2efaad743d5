"""toolchain: runs the C compiler, which turns sources into one shared library in a private cache folder (cache_folder.py).

In: C files, or texts (c_code.py).  Out: the path of a library whose name has the hash of everything it is built from: sources,
headers, flags, compiler version, processor.  Nothing in this module loads a library."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tensor_graphs.devices.c_code import Source, Text, ToolchainError, content_of, find_compiler, headers_of
from tensor_graphs.devices.cache_folder import CacheDiskError, CacheFolderError, unusable, user_folder
from tensor_graphs.devices.checksummed_files import holds, place
from tensor_graphs.devices.features import first_core
from tensor_graphs.devices.write_checksummed_files import seal
from tensor_graphs.errors import counted
from tensor_graphs.phase_times import phase

log = logging.getLogger(__name__)

COMPILE_SECONDS = 300.0  # a compiler that takes longer than this hangs


def compile_flags(*, portable: bool = False, machine: str | None = None) -> tuple[str, ...]:
    """Return the flags for one C file. Not -ffast-math: NaN and infinity must come out right and sums keep their written order.

    portable: leave out this processor's own instructions, for a library that runs on other machines."""
    machine = machine or platform.machine()
    if portable:
        native: tuple[str, ...] = ()
    elif machine in ("aarch64", "arm64"):
        native = ("-mcpu=native",)
    else:  # gcc prefers half of an AVX-512 register; whole ones ran the exponentials 1.5 times as fast (Cascade Lake)
        native = ("-march=native", "-mprefer-vector-width=512") if machine == "x86_64" else ("-march=native",)
    # contract: a * b + c may be one instruction; it only rounds less. openmp-simd: a loop's sum may be taken in lanes where the
    # text says so, and nowhere else. trapping-math: nobody reads the exception flags; without it selects do not vectorise
    return ("-std=gnu11", "-O3", *native, "-ffp-contract=fast", "-fno-math-errno", "-fopenmp-simd", "-fno-trapping-math",
            "-fvisibility=hidden", "-fPIC", "-pthread")


LINK_LIBRARIES: tuple[str, ...] = ("-lm",)


def link_flags(name: str = "") -> tuple[str, ...]:
    """Return the flags that link a shared library of this file name. The library also contains the name (where the linker supports
    that), so that another library linked against it uses the copy that the process has loaded, even if another process has replaced
    the file."""
    return ("-shared", "-pthread") if sys.platform == "darwin" else ("-shared", "-pthread", f"-Wl,-soname,{name}")



@functools.cache
def processor() -> str:
    """Return what the compiler sees of this processor under -march=native: architecture, model and features, as text."""
    core = first_core()
    names = sorted(core.keys() & {"model name", "flags", "Features", "CPU implementer", "CPU part"})
    return "\n".join([platform.machine(), platform.processor(), *(f"{name}: {core[name]}" for name in names)])


def digest(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def source_identity(source: Source, folders: Sequence[Path] = (), *, portable: bool = False, cc: str | None = None) -> str:
    """Return the identity of the code compiled from one C source: a hash [hex, 32 digits] of its text, its headers (next to it, or
    in `folders`), the flags, the compiler's version and the processor. A file that is moved keeps its identity."""
    compiler, _ = find_compiler(cc)
    version = compiler.version if compiler else "none"
    made_for = platform.machine() if portable else processor()
    files: list[tuple[str, bytes]] = [(source.name, content_of(source))]
    files += [(header.name, header.read_bytes()) for header in headers_of(source, folders)]
    parts = [part for name, content in files for part in (name.encode(), content)]
    return digest(*parts, *compile_flags(portable=portable), *link_flags(), *LINK_LIBRARIES, version, made_for)[:32]


@contextlib.contextmanager
def _work_folder(cache: Path) -> Iterator[Path]:
    try:
        folder = Path(tempfile.mkdtemp(prefix="build-", dir=cache))
    except OSError as error:
        raise unusable(cache, error) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(command: Sequence[str], what: str) -> None:
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise ToolchainError(f"{what}: the compiler ran longer than {COMPILE_SECONDS:.0f} s.\n$ {' '.join(command)}") from error
    except OSError as error:
        raise ToolchainError(f"{what}: {command[0]} does not start: {error.strerror}.\n  fix: name a compiler in CC") from error
    if result.returncode == 0:
        written = Path(command[command.index("-o") + 1])
        if not written.is_file():
            raise ToolchainError(f"{what}: {command[0]} says that it is done and wrote nothing, so it is no C compiler.\n"
                                 f"fix: name one in CC\n$ {' '.join(command)}")
        return
    output = result.stderr.strip()
    if "No space left on device" in output:
        fix = "fix: free some, or give another cache folder"
        raise CacheDiskError(f"{what}: no space left on the disk.\n{fix}\n{output[-2000:]}")
    output = output.replace(f"{Path(command[command.index('-o') + 1]).parent}{os.sep}", "")  # a text is compiled in the work folder
    shown = f"{output[:4000]}\n$ {' '.join(command)}"                  # the first error is the one that causes the others
    raise ToolchainError(f"{what}: the compiler failed with exit status {result.returncode}.\n{shown}")


def _quoted(name: str) -> str:
    """Return a file's name as a C string literal."""
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _written(source: Source, work: Path) -> tuple[str, ...]:
    """Return the compiler's arguments for a source; a text becomes a file in `work` that finds the headers of its own folder."""
    if not isinstance(source, Text):
        return (str(source),)
    begins = "" if source.at is None else f"#line {source.at[1]} {_quoted(str(source.at[0]))}\n"
    file = work / source.name
    file.write_text(begins + source.text)
    return ("-iquote", str(source.folder), str(file))


def _linked_with(needs: Sequence[str], folder: Path) -> tuple[str, ...]:
    """Return the linker's options for the libraries `needs`, given by their paths relative to `folder`, which holds the new one."""
    if not needs:
        return LINK_LIBRARIES
    # $ORIGIN: the other library is looked for relative to this one, so that the cache folder may be moved
    folders = dict.fromkeys(os.path.dirname(name) for name in needs)
    named = [option for name in folders for option in (f"-L{folder / name}", f"-Wl,-rpath,{Path('$ORIGIN', name)}")]
    return (*named, *(f"-l:{os.path.basename(name)}" for name in needs), "-Wl,-z,defs", *LINK_LIBRARIES)


@phase("compile C")
def build_library(sources: Sequence[Source], *, name: str, folders: Sequence[Path] = (), against: Sequence[Path] = (),
                  portable: bool = False, cache: Path | None = None, cc: str | None = None, jobs: int = 2,
                  progress: Callable[[str], None] | None = None, flags: Sequence[str] = ()) -> Path:
    """Return the path of the shared library built from `sources`, compiled now unless the cache has it.

    folders: where headers are searched that are not next to a source. against: libraries in the same cache folder whose symbols
    this one may use; a symbol that none of them defines is then an error. flags: in addition to the usual ones. The file is
    `NAME-HASH.so` in `cache` (default: the user's cache folder), sealed; it appears by a rename, so that processes may compile it
    simultaneously. progress: called with each source's name when its compilation begins. Raises ToolchainError: no compiler, a file
    that does not compile, a cache folder that cannot be used or is not private."""
    compiler, reason = find_compiler(cc)
    if compiler is None:
        raise ToolchainError(f"cannot compile {name}: {reason}")
    identities = [source_identity(source, folders, portable=portable, cc=cc) for source in sources]
    identity = digest(*identities, *(path.name for path in against), *flags)[:32]
    library = place(cache or user_folder("native"), f"{name}-{identity}.so")
    if holds(library):
        return library
    needs = [os.path.relpath(path, library.parent) for path in against]
    begun = time.perf_counter()
    log.info("compiling %s: %s, once for this machine", name, counted(len(sources), "C file"))
    flags = (*compile_flags(portable=portable), *flags)
    with _work_folder(library.parent) as work:
        objects = [work / f"{i}-{source.name}.o" for i, source in enumerate(sources)]
        named = [f"-I{folder}" for folder in folders]

        def compile_one(source: Source, target: Path) -> None:
            if progress:
                progress(source.name)
            command = [*compiler.command, *flags, *_written(source, work), *named, "-c", "-o", str(target)]
            _run(command, f"cannot compile {source.name}")

        with ThreadPoolExecutor(max(1, jobs)) as pool:
            largest_first = sorted(zip(sources, objects, strict=True), key=lambda pair: -len(content_of(pair[0])))
            for done in [pool.submit(compile_one, path, target) for path, target in largest_first]:
                done.result()
        linked = work / library.name
        link = [*compiler.command, *link_flags(library.name), *map(str, objects), *_linked_with(needs, library.parent), "-o",
                str(linked)]
        _run(link, f"cannot link {name}")
        try:
            seal(linked, needs)
            os.chmod(linked, 0o700)
            os.replace(linked, library)
        except OSError as error:
            raise unusable(library, error) from error
    log.info("compiled %s: %d files in %.1f s (%s)", library.name, len(sources), time.perf_counter() - begun, compiler.version)
    return library


@phase("compile C")
def build_each(texts: Mapping[str, Text], *, folders: Sequence[Path] = (), against: Sequence[Path] = (), cache: Path | None = None,
               cc: str | None = None, jobs: int = 2) -> dict[str, ToolchainError]:
    """Compile a library for each text (name of the file in the cache folder -> text) that is missing or damaged; return the errors
    of those that failed, by name.

    Each of `jobs` runs of the compiler builds one library from many texts, and the file names are links to it, so all texts must
    define different names. If a run fails, each half is compiled separately. Files appear complete, by a rename. Raises
    CacheFolderError."""
    places = {file: place(cache or user_folder("native"), file) for file in texts}
    missing = {file: text for file, text in texts.items() if not holds(places[file])}
    if not missing:
        return {}
    folder = places[next(iter(missing))].parent
    needs = [os.path.relpath(path, folder) for path in against]
    compiler, reason = find_compiler(cc)
    if compiler is None:
        return dict.fromkeys(missing, ToolchainError(f"cannot compile {next(iter(missing))}: {reason}"))
    begun = time.perf_counter()
    command = (*compiler.command, *compile_flags(), *(f"-I{path}" for path in folders))
    failed: dict[str, ToolchainError] = {}

    def compile_all(files: Sequence[str], work: Path) -> None:
        first = missing[files[0]]
        source = Text(f"{first.name}-{files[0]}.c", "\n".join(missing[file].text for file in files), first.folder)
        library = work / f"{files[0]}.made"
        try:
            _run([*command, *_written(source, work), *link_flags(library.name), *_linked_with(needs, folder), "-o", str(library)],
                 f"cannot compile {first.name}")
        except (CacheFolderError, CacheDiskError):
            raise
        except ToolchainError as error:
            if len(files) == 1:
                failed[files[0]] = error
                return
            half = len(files) // 2
            for part in (files[:half], files[half:]):
                compile_all(part, work)
            return
        try:
            seal(library, needs)
            os.chmod(library, 0o700)
            for file in files:
                _link(library, work / file)
                os.replace(work / file, folder / file)
        except OSError as error:
            raise unusable(folder, error) from error

    parts: list[list[str]] = [[] for _ in range(max(1, min(jobs, len(missing))))]
    for file in sorted(missing, key=lambda file: -len(missing[file].text)):
        min(parts, key=lambda part: sum(len(missing[name].text) for name in part)).append(file)
    try:
        with _work_folder(folder) as work, ThreadPoolExecutor(len(parts)) as pool:
            for done in [pool.submit(compile_all, part, work) for part in parts]:
                done.result()
    except CacheDiskError as error:
        failed |= {file: error for file in missing if not holds(folder / file)}
    log.info("compiled %d texts of C in %d runs, %.2f s; %d do not compile", len(missing), len(parts), time.perf_counter() - begun,
             len(failed))
    return failed


def _link(file: Path, other: Path) -> None:
    """Give a file a second name (hard link), or copy it where the file system has no hard links."""
    try:
        os.link(file, other)
    except OSError:
        shutil.copy2(file, other)
