"""identity: one digest of all the code that a kernel depends on. Changed code gives another digest, and so another kernel.

The digest covers, with files as they are when the kernel is declared:

- the module that defines the kernel, the modules of its functions, and every user module that these import, directly or through one
  another. Imports are read from the text (also inside functions, under conditions, relative ones, packages above a module,
  `import_module("name")`), so nothing is imported to find them; modules that a module holds in its global names count too. A Python
  file counts by its syntax tree: comments, layout and line numbers do not matter, docstrings do. Any other module (an extension)
  counts by its bytes.
- A user module is one whose file belongs neither to Python nor to an installed distribution, or one of the top-level package of the
  kernel's module. Of tensor_graphs only the folders of backends count; the other folders contain no kernel code.
- name and version of each installed distribution that these modules import.
- the bytes of files that the kernel names (`sources`), and of code files next to a module that it names in a string, with the
  headers that they include by "name"; for C code also the compiler's version.
- values bound to the functions: closures, defaults, arguments of `partial`, where they are plain data or numpy arrays. Of any other
  object only the type counts.

docs/backends.md lists what is not covered."""

from __future__ import annotations

import dataclasses
import dis
import functools
import hashlib
import logging
import os
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path, PurePath
from types import CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from tensor_graphs.devices.c_code import find_compiler, headers_of

if TYPE_CHECKING:
    from tensor_graphs.kernels.python_text import ModuleText

log = logging.getLogger(__name__)

HOUSE = Path(__file__).resolve().parents[1]
BACKENDS = HOUSE / "kernels"
"""the folder whose subfolders are backends; the files directly in it count as code that runs kernels, not as kernels"""

GENERATOR = HOUSE / "codegen"
"""the folder of the generating backends, outside BACKENDS"""

C_CODE = (".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".h", ".hpp")

STANDARD = {Path(os.path.realpath(p)) for p in (sysconfig.get_path("stdlib"), os.path.dirname(os.__file__))}
SITES = ("site-packages", "dist-packages")


@dataclass(frozen=True)
class File:
    """A file as it was read. stamp: numbers that change when it is written to or replaced. tree: digest of its syntax tree, if it
    counts by that."""

    path: str
    digest: str
    stamp: tuple[int, ...]
    tree: str = ""

    def changed(self) -> bool:
        """Return whether the file is gone, or its content (syntax tree, if `tree` is set) differs from when it was read."""
        try:
            if _stamp(os.stat(self.path)) == self.stamp:
                return False
            data = Path(self.path).read_bytes()
        except OSError:
            return True
        return _digest(data) != self.digest and not (self.tree and _tree(data) == self.tree)


@dataclass(frozen=True)
class Module:
    """A module as it was read. imports: (level, module, names; None for `import module`). lines: line -> numbers of the functions
    that begin there. strings: those that may name files. listed: the names in `__all__`."""

    name: str
    file: File | None
    package: str
    digest: str
    text: str = ""
    imports: tuple[tuple[int, str, tuple[str, ...] | None], ...] = ()
    lines: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    strings: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Code:
    """The code of a kernel: the digest of all of it, the files that were read, and the parts that the digest is made of (name of a
    module or of a kind of value -> digest)."""

    digest: str
    files: tuple[File, ...]
    parts: Mapping[str, str]

    def changed(self) -> str | None:
        """Return the path of the first file that has changed since it was read; None when none has."""
        return next((f.path for f in self.files if f.changed()), None)


def code_of(module: str, functions: Sequence[Any], sources: Sequence[Path], text: str) -> Code:
    """Return the code of a kernel. module: name of the defining module. functions: the kernel's callables (None where it lacks
    one).
    sources: files that it names. text: its source. Raises OSError when a file cannot be read."""
    bound = _Bound(module)
    forms = [bound.form(function) for function in functions]
    digests: dict[str, str] = {}
    files: dict[str, File] = {}
    for root in (module, *sorted(bound.modules - {module})):
        reads = reached(root)
        digests |= reads.digests
        files |= reads.files
    for path in sources:
        for part in (path, *(headers_of(path) if path.suffix in C_CODE else ())):
            files[str(part)] = file = _read_file(str(part))[0]
            digests[f"source {part.name} {file.digest}"] = ""
    own = _module(module)
    before, inside, _ = own.text.partition(text.strip()) if own is not None and text.strip() else ("", "", "")
    begins = own.lines.get(before.count("\n") + 1) if own is not None and inside else None
    if begins and not before.rpartition("\n")[2].strip():           # the module's tree covers it, so its comments do not count
        text = repr(begins)
    if any(path.endswith(C_CODE) for path in files):
        compiler, _ = find_compiler()
        digests[f"compiler {compiler.version if compiler else 'none'}"] = ""
    modules = {("" if name == module else name): digest for name, digest in digests.items()}
    parts = digests | {"the values bound to its functions": _digest(repr(forms).encode("utf-8", "surrogatepass")),
                       "its source text": _digest(text.encode("utf-8", "surrogatepass"))}
    digest = _digest(repr((sorted(modules.items()), forms, text)).encode("utf-8", "surrogatepass"))
    return Code(digest, tuple(files.values()), parts)


def base_folder(module: str) -> Path:
    """Return the folder of a module's file, to which its file names are relative; without a file the current folder."""
    place = _locate(module)
    return Path(place.origin).resolve().parent if place is not None and place.origin else Path.cwd()


# ---- which modules ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _ModulePlace:
    """The location of a module. origin: its file; None for a namespace package. path: search path, for a package only."""

    name: str
    origin: str | None
    path: tuple[str, ...] | None
    loader: Any
    package: str


@dataclass(frozen=True)
class Reached:
    digests: Mapping[str, str]
    files: Mapping[str, File]


_modules: dict[str, tuple[Any, Any, Module | None]] = {}
_closures: dict[str, tuple[Any, Any, Reached]] = {}
"""module name -> (the module, its spec, the result). The running code is the code as it was imported, so a result stays valid until
the module is imported again or reloaded, which creates a new spec"""


def _running(name: str) -> tuple[Any, Any]:
    module = sys.modules.get(name)
    return module, getattr(module, "__spec__", None)


def reached(root: str) -> Reached:
    """Return digests and files of a module and of all user modules that it imports. A process and its forks read them once."""
    running, spec = _running(root)
    remembered = _closures.get(root)
    if remembered is not None and running is not None and remembered[0] is running and remembered[1] is spec:
        return remembered[2]
    own = root.partition(".")[0]
    digests: dict[str, str] = {}
    files: dict[str, File] = {}
    todo = [root]
    seen: set[str] = set()
    while todo:
        name = todo.pop()
        if name in seen or (name in ("__main__", "") and name != root):   # __main__ is another module in another process
            continue
        seen.add(name)
        todo += [name.rpartition(".")[0]]                           # a package is run before what is in it
        kind = "user" if name == root else _kind(name, own)
        if kind != "user":
            if kind:
                digests[kind] = ""
            continue
        module = _module(name)
        if module is None:
            digests[name] = "missing"                               # until it exists
            continue
        digests[name] = module.digest
        if module.file is not None:
            files[module.file.path] = module.file
            for named in () if HOUSE in Path(_real(module.file.path)).parents else _named_files(module):   # ours say it themselves
                files[named.path] = named
                digests[f"file {os.path.basename(named.path)} {named.digest}"] = ""
        todo += [*_imported(module), *_modules_held(name)]
    result = Reached(digests, files)
    if running is not None:
        _closures[root] = running, spec, result
    return result


def _kind(name: str, own: str) -> str:
    """Return "user" for a module that is to be read, "distribution name version" for an installed one, else "" (does not count)."""
    place = _locate(name)
    if place is None:
        above = name.rpartition(".")[0]
        parent = _locate(above) if above else None
        if above and (parent is None or parent.path is None):       # a name imported from a module, not a module
            return ""
        return "user" if not above or _kind(above, own) == "user" else ""
    if place.origin is None:                                        # of Python itself, or a namespace, which holds no code
        return ""
    file, real = Path(os.path.abspath(place.origin)), Path(_real(place.origin))
    if HOUSE in real.parents:
        return "user" if BACKENDS in real.parent.parents or GENERATOR == real.parent else ""
    if name.partition(".")[0] == own:
        return "user"
    if not any(site in real.parts for site in SITES) and any(standard in real.parents for standard in STANDARD):
        return ""
    folder = file.parents[min(name.count(".") + (place.path is not None), len(file.parents) - 1)]
    distribution = _distribution(str(folder), file.relative_to(folder).as_posix())
    return f"distribution {distribution}" if distribution else "user"


def _imported(module: Module) -> Iterator[str]:
    """Yield the names of the modules that a module imports, and of imported members, which may be modules too."""
    for level, name, names in module.imports:
        base = name
        if level:
            parts = module.package.split(".")
            if level > len(parts) or not module.package:
                continue                                            # it fails when it runs
            base = ".".join([*parts[: len(parts) - level + 1], *([name] if name else [])])
        yield base
        for member in names or ():
            if member != "*":
                yield f"{base}.{member}"
                continue
            listed = _module(base) if _kind(base, "") == "user" else None
            yield from (f"{base}.{public}" for public in (listed.listed if listed else ()))


def _modules_held(name: str) -> set[str]:
    """Return the user modules that a module's global names refer to: a module, or the module of a function or class. Submodules of
    the module are left out, as importing them sets these names."""
    holding, _ = _running(name)
    names = set()
    for value in list(vars(holding).values()) if isinstance(holding, ModuleType) else ():
        held: Any = value.__name__ if isinstance(value, ModuleType) else None
        if isinstance(value, (FunctionType, type)):
            held = value.__module__
        if isinstance(held, str) and held.rpartition(".")[0] != name and _is_users(held, name):
            names.add(held)
    return names


def _locate(name: str) -> _ModulePlace | None:
    """Return the location of the module that has this name or would be imported by it; None if there is none. Imports nothing."""
    module, spec = _running(name)
    if module is None and name in sys.modules:
        return None
    path = getattr(module, "__path__", None)
    origin = getattr(module, "__file__", None) or (spec.origin if spec is not None and spec.has_location else None)
    if origin or path is not None:                                  # else it is built in, or an empty one that a tool has made
        package = getattr(module, "__package__", None) or (name if path is not None else name.rpartition(".")[0])
        return _ModulePlace(name, origin, None if path is None else tuple(path), getattr(module, "__loader__", None), package)
    above = name.rpartition(".")[0]
    parent = _locate(above) if above else None
    if above and (parent is None or parent.path is None):
        return None
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, None if parent is None else list(parent.path or ()), None)
        except Exception:                                           # anyone's code
            continue
        if spec is not None:
            path = None if spec.submodule_search_locations is None else tuple(spec.submodule_search_locations)
            origin = spec.origin if spec.has_location else None
            return _ModulePlace(name, origin, path, spec.loader, above if path is None else name)
    return None


@functools.lru_cache(maxsize=1024)
def _distribution(folder: str, file: str) -> str | None:
    """Return "name version" of the distribution that installed `file` into `folder`; None where there is none."""
    top = file.partition("/")[0].partition(".")[0]
    metadata = _metadata(folder)
    if re.sub(r"[-_.]+", "_", top).lower() in metadata:
        return metadata[re.sub(r"[-_.]+", "_", top).lower()][0]
    for title, path in metadata.values():                           # a module of another name: yaml of PyYAML
        for listing, line in (("RECORD", f"\n{file},"), ("top_level.txt", f"\n{top}\n")):
            try:
                if line in f"\n{Path(path, listing).read_text(encoding='utf-8', errors='replace')}\n":
                    return title
            except OSError:
                continue
    return None


@functools.lru_cache(maxsize=64)
def _metadata(folder: str) -> dict[str, tuple[str, str]]:
    """Return the distributions installed into a folder: normalized name -> ("name version", path of the metadata)."""
    distributions = {}
    for entry in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        match = re.fullmatch(r"([^-]+)-([^-]+)(-.*)?\.(dist-info|egg-info)", entry)
        if match:
            distributions[re.sub(r"[-_.]+", "_", match[1]).lower()] = f"{match[1]} {match[2]}", os.path.join(folder, entry)
    return distributions


# ---- what a file says ------------------------------------------------------------------------------------------------


def _module(name: str) -> Module | None:
    """Return a module as it was first read since its import; None where it is not found or cannot be read."""
    running, spec = _running(name)
    remembered = _modules.get(name)
    if remembered is not None and running is not None and remembered[0] is running and remembered[1] is spec:
        return remembered[2]
    place = _locate(name)
    module = None if place is None else _read_module(place)
    _modules[name] = running, spec, module
    return module


def _read_module(place: _ModulePlace) -> Module | None:
    if place.origin is None:
        return None
    path, text = place.origin, None
    try:
        file, data = _read_file(path)
        if not path.endswith(".py"):
            return Module(place.name, file, place.package, file.digest)
    except OSError:
        path = str(getattr(place.loader, "archive", ""))             # of a zip file
        try:
            file, _ = _read_file(path)
            text = place.loader.get_source(place.name)
        except Exception:                                           # anyone's loader
            return None
        if text is None:
            return Module(place.name, file, place.package, file.digest)
        data = text.encode("utf-8", "surrogatepass")
    try:
        read = _parsed(data)
    except (SyntaxError, ValueError, RecursionError):
        return Module(place.name, file, place.package, file.digest)
    if read.computed:
        log.info("%s: line %s imports by a name that is computed, or runs text; no identity covers that (name the file in sources)",
                 path, ", ".join(map(str, read.computed)))
    file = dataclasses.replace(file, tree=read.digest) if path == place.origin else file
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    return Module(place.name, file, place.package, read.digest, text, read.imports, read.lines, read.strings, read.listed)


def _parsed(data: bytes) -> ModuleText:
    """Return the parsed text of a module, cached. Raises SyntaxError, ValueError or RecursionError for invalid Python."""
    from tensor_graphs.kernels.python_text_cache import text_of  # a door: importing asks for no identity

    return text_of(data, _digest(data))


def _tree(data: bytes) -> str | None:
    """Return the digest of a text's syntax tree; None when the text is no Python."""
    try:
        return _parsed(data).digest
    except (SyntaxError, ValueError, RecursionError):
        return None


def _named_files(module: Module) -> Iterator[File]:
    """Yield the code files in a module's folder that the module names in a string, and the headers that they include."""
    assert module.file is not None
    folder = os.path.dirname(_real(module.file.path))
    for name in sorted(set(module.strings)):
        path = os.path.join(folder, name)
        if os.path.isfile(path) and _real(path) != _real(module.file.path):
            for file in (Path(path), *(headers_of(Path(path)) if name.endswith(C_CODE) else ())):
                yield _read_file(str(file))[0]


_real = functools.lru_cache(maxsize=4096)(os.path.realpath)


def _read_file(path: str) -> tuple[File, bytes]:
    with open(path, "rb") as opened:
        stamp = _stamp(os.fstat(opened.fileno()))
        data = opened.read()
    return File(path, _digest(data), stamp), data


def _stamp(facts: os.stat_result) -> tuple[int, ...]:
    """Return numbers that change when a file is written to, renamed over, or linked elsewhere."""
    return facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size, facts.st_ino, facts.st_dev


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# ---- what is bound to a function -------------------------------------------------------------------------------------


_PLAIN = frozenset({type(None), type(...), bool, int, float, complex, str, bytes})


class _Bound:
    """A builder of forms of values: strings that are equal in every process for equal plain data. modules: names of the user
    modules of the functions and objects in these values."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.modules: set[str] = set()
        self._known: dict[int, tuple[Any, str]] = {}
        """id -> (the object, which keeps the id in use, its form); while the form is computed, "met as N", for cycles"""

    def form(self, value: Any) -> str:
        """Return a string that identifies a value: its repr for plain data, else a digest of its contents."""
        if type(value) in _PLAIN:
            return f"{type(value).__name__} {value!r}" if type(value) is not int else f"int {value:#x}"
        if id(value) not in self._known:
            self._known[id(value)] = value, f"met as {len(self._known)}"
            self._known[id(value)] = value, _digest(repr(self._form(value)).encode("utf-8", "surrogatepass"))
        return self._known[id(value)][1]

    def _form(self, value: Any) -> Any:
        kind = self._named(type(value))
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, CodeType):
            return self._code(value)
        if isinstance(value, functools.partial):
            return "partial", self.form(value.func), self.form(value.args), self.form(value.keywords)
        if isinstance(value, MethodType):
            return "method", self.form(value.__func__), self.form(value.__self__)
        if isinstance(value, (type, ModuleType)):
            if isinstance(value, ModuleType) and _is_users(value.__name__, self.module):
                self.modules.add(value.__name__)
            return "named", self._named(value)
        if isinstance(value, np.ndarray):
            objects = value.dtype.hasobject
            data = self.form(value.tolist()) if objects else _digest(np.ascontiguousarray(value).tobytes())
            return "array", str(value.dtype), value.shape, data
        if isinstance(value, np.generic):
            return "number", str(value.dtype), value.tobytes().hex()
        if isinstance(value, (np.dtype, PurePath, range, slice)):
            return "text", str(value)
        if isinstance(value, (int, float, complex, str, bytes)):    # of a class of its own
            return kind, repr(value)
        if isinstance(value, Enum):
            return "enum", kind, value.name
        if isinstance(value, (tuple, list)):
            return (kind, *map(self.form, value))
        if isinstance(value, (set, frozenset)):
            return (kind, *sorted(map(self.form, value)))
        if isinstance(value, (dict, MappingProxyType)):
            return (kind, *((self.form(k), self.form(v)) for k, v in value.items()))
        if dataclasses.is_dataclass(value):
            return (kind, *((f.name, self.form(getattr(value, f.name, None))) for f in dataclasses.fields(value)))
        if hasattr(value, "__wrapped__"):
            return "around", kind, self.form(value.__wrapped__)
        if _is_users(type(value).__module__, self.module) and hasattr(value, "__dict__"):
            self.modules.add(type(value).__module__)
            return (kind, *((name, self.form(attribute)) for name, attribute in sorted(vars(value).items())))
        return "only the type", kind

    def _named(self, value: Any) -> str:
        """Return the name of a class or module. The kernel's module counts as "", so that it may be imported under any name."""
        if isinstance(value, ModuleType):
            return "" if value is sys.modules.get(self.module) else value.__name__
        return f"{'' if value.__module__ == self.module else value.__module__}.{value.__qualname__}"

    def _function(self, function: FunctionType) -> Any:
        code, home = function.__code__, function.__module__ or ""
        within: Any = ()
        if _is_users(home, self.module):
            self.modules.add(home)
            module = _module(home)
            if module is not None and module.file is not None and _real(code.co_filename) == _real(module.file.path):
                within = module.lines.get(code.co_firstlineno, ())
            else:                                                   # no file has it: text that was run, a session
                space = function.__globals__
                used = sorted(name for name in globals_of(code) if name in space)
                within = self._code(code), [(name, self.form(space[name])) for name in used]
        cells = [self.form(_content(cell)) for cell in function.__closure__ or ()]
        return ("function", self._named(function), within, cells, self.form(function.__defaults__ or ()),
                self.form(function.__kwdefaults__ or {}))

    def _code(self, code: CodeType) -> Any:
        return ("code", code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars,
                code.co_argcount, code.co_kwonlyargcount, code.co_flags, tuple(map(self.form, code.co_consts)))


def globals_of(code: CodeType) -> set[str]:
    """Return the global names that code and the code nested in it use (the body of a class reads them by LOAD_NAME)."""
    own = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return own.union(*(globals_of(c) for c in code.co_consts if isinstance(c, CodeType)))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:                                              # not assigned yet
        return "an empty cell"


def _is_users(name: str, module: str) -> bool:
    return name == module or (bool(name) and _kind_of(name, module.partition(".")[0], sys.modules.get(name)) == "user")


@functools.lru_cache(maxsize=1024)
def _kind_of(name: str, own: str, running: Any) -> str:
    return _kind(name, own)


def code_text(code: CodeType) -> str:
    """Return a name for code without source text: a digest that is equal for equal code in every process."""
    return f"code {_digest(repr(_Bound('')._code(code)).encode('utf-8', 'surrogatepass'))}"
