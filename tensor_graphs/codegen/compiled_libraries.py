"""compiled_libraries: the compiled code of generated kernels. One compiler run compiles many of them. Each is cached under a hash
of its source, the headers, the compiler, the processor and the library that it is linked against.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Protocol

from tensor_graphs.codegen.loop_ir import StageProgram
from tensor_graphs.codegen.print import c_loops
from tensor_graphs.codegen.refusals import why_not
from tensor_graphs.devices import c_code, toolchain
from tensor_graphs.devices.cache_folder import CacheFolderError
from tensor_graphs.devices.checksummed_files import holds, place
from tensor_graphs.kernels.c import library

FOLDER = Path(__file__).resolve().parent
HEADER = FOLDER / "numbers.h"


@dataclass(frozen=True)
class CompiledCode:
    """A compiled kernel. symbol: the name of its function. file: the library that contains it, in the cache folder."""

    symbol: str
    file: str

    @property
    def path(self) -> Path:
        return place(library.load().path.parent, self.file)


@cache
def made_with() -> str:
    """Return the identity of everything that generated code is compiled with: headers, flags, compiler, processor, thread pool."""
    return f"{toolchain.source_identity(HEADER, (library.FOLDER,))} {library.identity_of(library.FOLDER / 'pool.c')}"


class OwnText(Protocol):
    """A program that renders its own C source, with loops around other loops (scan_c.py)."""

    def __hash__(self) -> int: ...

    def rendered(self, name: str) -> str: ...


AnyProgram = StageProgram | OwnText


def _rendered(program: AnyProgram, name: str = "generated") -> str:
    return c_loops.rendered(program, name) if isinstance(program, StageProgram) else program.rendered(name)


_text = lru_cache(maxsize=4096)(_rendered)


@lru_cache(maxsize=4096)
def _identities(text: str) -> tuple[str, ...]:
    """Return the identities of the package's handwritten code that a source calls: the matrix products, if any."""
    return tuple(_identity(path) for path in library.called_by(text))


_identity = cache(library.identity_of)


def code_of(program: AnyProgram) -> CompiledCode:
    """Return the location of a program's compiled code, which may not exist yet."""
    text = _text(program)
    content = "\0".join((text, made_with(), library.load().path.name, *_identities(text)))
    name = f"gen_{hashlib.sha256(content.encode()).hexdigest()[:24]}"
    return CompiledCode(name, f"{name}.so")


def compiled(programs: Sequence[AnyProgram]) -> list[str | None]:
    """Compile together the programs that the cache lacks. Return None for each, or why it has no code. Raises CacheFolderError."""
    codes = [code_of(p) for p in programs]
    texts = {code.file: c_code.Text("generated", _rendered(program, code.symbol), FOLDER)
             for code, program in zip(codes, programs, strict=True) if not holds(code.path)}
    failed: dict[str, c_code.ToolchainError] = {}
    against: dict[Path, None] = {}
    for file, text in texts.items():
        try:
            against |= dict.fromkeys(library.load().paths(text.text))
        except CacheFolderError:
            raise
        except c_code.ToolchainError as error:                      # what it calls does not compile
            failed[file] = error
    left = {file: text for file, text in texts.items() if file not in failed}
    failed |= toolchain.build_each(left, folders=(library.FOLDER,), against=list(against), cache=library.load().path.parent)
    return [str(failed[code.file]) if code.file in failed else None for code in codes]


def compiled_together(wanted: Sequence[Callable[[], Sequence[AnyProgram]]]) -> list[str | None]:
    """Compile together the programs of several kernels. wanted: for each a function that gives its programs, or raises NotLowered.
    Return for each kernel None, or why it cannot be built. Raises CacheFolderError."""
    refusals = [why_not(programs) for programs in wanted]
    programs_of = [programs() if why is None else () for programs, why in zip(wanted, refusals, strict=True)]
    distinct = list(dict.fromkeys(p for programs in programs_of for p in programs))
    whys = dict(zip(distinct, compiled(distinct), strict=True))
    return [why or next((whys[p] for p in programs if whys[p] is not None), None)
            for programs, why in zip(programs_of, refusals, strict=True)]


_waiting: dict[str, AnyProgram] = {}
"""file -> the program that it is compiled from"""


def later(program: AnyProgram) -> CompiledCode:
    """Return the location of a program's code. It is compiled on first load, or together with others by library.make_now."""
    code = code_of(program)
    _waiting[str(code.path)] = program
    library.make_later(str(code.path), _make)
    return code


def _make(images: Sequence[str]) -> None:
    """Raises ToolchainError for the first image that does not compile."""
    why = next((why for why in compiled([_waiting[image] for image in images]) if why is not None), None)
    if why is not None:
        raise c_code.ToolchainError(why)
