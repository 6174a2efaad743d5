"""c_kernel: registration of a user's C kernel from its source (`tg.c_kernel`), compiled and called like built-in ones (see tg.h).

Each such kernel has a separate library, linked against the built-in core, so that a process has one thread pool and one set of
scratch memory. Its call is a `NativeCall` with that library as the image."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tensor_graphs.devices import c_code, cache_folder, toolchain
from tensor_graphs.devices.checksummed_files import holds
from tensor_graphs.kernels import check_declaration, registry, user_source
from tensor_graphs.kernels.c import library
from tensor_graphs.kernels.declaration_place import here
from tensor_graphs.kernels.identity import base_folder
from tensor_graphs.kernels.kernel import Kernel, KernelError, NativeCall, Spec
from tensor_graphs.kernels.strides import Strides
from tensor_graphs.language.composite import CompositeOp
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.explain_call_errors import worded

BACKEND = "c"

Numbers = Sequence[Dim] | Callable[[Spec], Sequence[Dim]]
Scalars = Sequence[float] | Callable[[Spec], Sequence[float]]
Pointers = Sequence[int | None] | Callable[[Spec], Sequence[int | None]]
Bytes = Dim | Callable[[Spec], Dim]
Strided = Callable[[Spec, Sequence[Strides]], Sequence[Dim] | None]


class Image:
    """The library of one user-registered kernel: its sources, its identity, and its path once compiled. The kernel's identity
    includes only `identity()`, so that folders and line numbers may change."""

    __slots__ = ("_path", "entry", "name", "sources")

    def __init__(self, name: str, entry: str, sources: Sequence[c_code.Source]) -> None:
        self.name, self.entry, self.sources = name, entry, tuple(sources)
        self._path: Path | None = None

    def _all(self) -> tuple[c_code.Source, ...]:
        declared = f'#include "tg.h"\nTG_KERNEL({self.entry});\nTG_API const tg_kernel {library.ENTRY} = {self.entry};\n'
        return (*self.sources, c_code.Text("entry.c", declared, library.FOLDER))

    def identity(self) -> str:
        """Return the identity of all code that runs: the sources with their headers (also built-in ones), and the thread pool."""
        own = (toolchain.source_identity(source, (library.FOLDER,)) for source in self._all())
        return " ".join([*own, library.identity_of(library.FOLDER / "pool.c")])

    def path(self) -> Path:
        """Return the library's path; it is compiled now unless this object or the cache has it. Raises ToolchainError."""
        if self._path is None or not holds(self._path):
            self._path = self.compiled()
            _IMAGES[str(self._path)] = self
        return self._path

    def compiled(self, more: Sequence[c_code.Source] = (), flags: Sequence[str] = ()) -> Path:
        """Compile a library of the sources and `more` unless cached, with extra `flags`; return its path. Raises ToolchainError."""
        ours = library.load()
        own = " ".join(c_code.content_of(source).decode(errors="replace") for source in self.sources)
        name = re.sub(r"[^\w.-]", "_", self.name)
        try:
            return toolchain.build_library((*self._all(), *more), name=name, folders=(library.FOLDER,), against=ours.paths(own),
                                           cache=ours.path.parent, flags=flags)
        except cache_folder.CacheFolderError:
            raise
        except c_code.ToolchainError as error:
            if f"undefined reference to `{self.entry}'" in str(error) or f"undefined symbol: {self.entry}\n" in str(error):
                raise c_code.ToolchainError(f"the source of kernel {self.name!r} has no function {self.entry!r}\n"
                                               f"  fix: TG_KERNEL({self.entry}) {{ … }} in it, or another `entry`") from None
            texts = [user_source.text_of(source) for source in self.sources]
            bare = any("TG_KERNEL" in text for text in texts) and not any("#include \"" in text for text in texts)
            fix = "\n  fix: #include \"tg.h\" at its beginning, which says what TG_KERNEL is" if bare else ""
            raise c_code.ToolchainError(f"kernel {self.name!r}: {error}{fix}") from None


_IMAGES: dict[str, Image] = {}
"""path of the library -> its Image"""


def image_at(path: str) -> Image | None:
    """Return the user-registered library at a path, if this process compiled it or found it in the cache, else None."""
    return _IMAGES.get(path)


@worded
def c_kernel(op: check_declaration.Computed, *, source: str | Path, entry: str, name: str | None = None, ints: Numbers = (),
             floats: Scalars = (), pointers: Pointers | None = None, scratch: Bytes = 0, dtypes: Sequence[DType | str] = (),
             accepts: Callable[[Spec], str | None] | None = None, in_place: tuple[tuple[int, int], ...] = (),
             updates: bool = False, requirements: Mapping[str, Any] | None = None, sources: Sequence[str | Path] = (),
             strided: Strided | None = None, assuming: str | Sequence[str] = ()) -> Kernel:
    """Register a function in C as a kernel of an op (its name, or a `tg.composite` of yours), or of a graph (see `tg.kernel`).

    The source is compiled during this call, with the compiler, flags and cache of the built-in kernels.

        tg.c_kernel("softmax", source="softmax.c", entry="my_softmax", dtypes=["f32"],
                    ints=lambda spec: (math.prod(spec.inputs[0].shape[:-1]), spec.inputs[0].shape[-1]))

    source: C text; or a file, as a Path or as a name that ends in .c, relative to the folder of the calling module. It may include
    the built-in headers "tg.h", "loops.h" and "vec.h", and headers in that folder.
    entry: name of the function, defined as `TG_KERNEL(entry) { … }`, which means `void entry(void *const *ptr, const int64_t *ints,
    const double *floats)`. ptr: outputs, then operands, each C-contiguous in its dtype; NULL for an absent optional operand.
    ints, floats: numbers for the function, as sequences or as functions of the spec; ints may be expressions of dims, which are
    evaluated at each run. There are at most 16 pointers, 32 ints and 8 floats.
    Several threads may call the function simultaneously on different arrays. It must write only to its outputs, its stack and
    tg_scratch; no output may depend on a static variable.
    pointers: other positions of operands, or None for NULL. scratch: upper bound of the bytes from tg_scratch, on all threads;
    plans count them. dtypes: those that operands and outputs may have, in any mix. accepts(spec): None, or the reason for a
    refusal; called after the check of `dtypes`. name: by default "c." and the entry.
    strided(spec, strides): return the ints for operands with these strides (elements, a tuple for each operand), or None to have
    them copied first. By default all operands that have gaps, are reversed, transposed or have stride 0 are copied.
    in_place, updates, requirements: as in `Kernel`; assuming: as in `tg.kernel`. sources: further C files, compiled too, and other
    files that the kernel depends on.
    Without a C compiler, or where the device does not meet the requirements, the kernel is registered but not compiled, and is no
    candidate; a WARNING is logged with the reason.
    Raises KernelError when the name is taken or invalid, a file is missing, neither `dtypes` nor `accepts` is given, a function has
    wrong parameters, or a requirement is unknown; ToolchainError with the compiler's messages when the source does not compile.
    """
    place = here()
    op = check_declaration.require_computed(op)
    name = user_source.named_after(name, BACKEND, entry, "C")
    taken_dtypes = user_source.require_declared(name, dtypes, accepts)
    check_declaration.require_declaration(name, BACKEND, op)
    in_place = check_declaration.pairs_in_place(name, in_place, op)
    check_declaration.require_flag(name, "updates", updates)
    for what, numbers, most in (("ints", ints, library.MAX_INT), ("floats", floats, library.MAX_FLOAT)):
        _require_at_most(name, user_source.require_given(name, what, numbers, what) or (), what, most)
    if pointers is not None:
        if callable(pointers):
            check_declaration.require_function(name, "pointers", pointers, ("spec",))
        else:
            _positions(name, pointers, check_declaration.counts_of(op)[1])
    if callable(scratch):
        check_declaration.require_function(name, "scratch", scratch, ("spec",))
    else:
        user_source.require_count(name, "scratch", scratch, "scratch")
    if strided is not None:
        check_declaration.require_function(name, "strided", strided, ("spec", "strides"))
    folder = base_folder(place.module) if place.file is None else Path(place.file).parent
    main, read = user_source.source_of(name, source, folder, place, ".c")
    others = user_source.files_of(name, folder, sources)
    user_source.require_files(name, folder, (*read, *others))
    _require_kernel_of(name, entry, user_source.text_of(main))
    image = Image(name, entry, (main, *(file for file in others if file.suffix == ".c")))

    def build(spec: Spec) -> NativeCall:
        positions = _operands(spec) if pointers is None else _positions(
            name, pointers(spec) if callable(pointers) else pointers, len(spec.inputs))
        wholes, reals = (user_source.require_numbers(name, what, *user_source.of_spec(what, option, spec))
                         for what, option in (("ints", ints), ("floats", floats)))
        user_source.require_dims(name, "ints", wholes, spec)
        own = user_source.require_count(name, "scratch", *user_source.of_spec("scratch", scratch, spec))
        call = NativeCall(entry, tuple(positions), wholes, tuple(map(float, reals)), own, str(image.path()))
        for values, what, most in (((*spec.outputs, *call.pointers), "arrays", library.MAX_PTR), (wholes, "ints", library.MAX_INT),
                                   (call.floats, "floats", library.MAX_FLOAT)):
            _require_at_most(name, values, what, most)
        return call

    def lying(spec: Spec, strides: Sequence[Strides]) -> NativeCall | None:
        assert strided is not None
        numbers = strided(spec, strides)
        if numbers is None:
            return None
        wholes = user_source.require_numbers(name, "ints", numbers, "what strided returns")
        _require_at_most(name, wholes, "ints", library.MAX_INT)
        return replace(build(spec), ints=wholes)

    headers = (h for file in image.sources for h in c_code.headers_of(file, (library.FOLDER,)) if h.parent != library.FOLDER)
    kernel = Kernel(
        name=name, backend=BACKEND, op=check_declaration.op_name(op), composite=check_declaration.own_composite(op), build=build,
        accepts=user_source.refusal(BACKEND, taken_dtypes, accepts), source=user_source.text_of(main), module=place.module,
        toolchain=image.identity(), in_place=in_place, contiguous=True, updates=updates,
        strided=lying if strided is not None else None, requirements=requirements or {},
        sources=tuple(map(str, (*read, *others, *headers))), assuming=check_declaration.assuming_of(name, assuming),
        crash_note="" if callable(ints) or len(ints) else
        "it is declared without ints=, so whatever ints[…] its source reads is not there\n"
        "  fix: ints=lambda spec: [math.prod(spec.outputs[0].shape)], or what else the source reads")
    why = registry.why_missing(BACKEND) or registry.lacking(kernel)
    if why is None:
        image.path()                                                # an error is raised where the kernel is written
    return user_source.registered(kernel, place, why)               # nor does it compile where the device lacks what it requires


def _require_at_most(name: str, values: Sequence[Any], what: str, most: int) -> None:
    if len(values) > most:
        raise KernelError(f"kernel {name!r} is to be called with {len(values)} {what}; there are {most} at most")


def _positions(name: str, pointers: Any, count: int | None = None) -> tuple[int | None, ...]:
    """Return `pointers` as a tuple of operand positions, None for NULL. count: number of operands, if known. Raises KernelError."""
    fix = "pointers=[0, None, 1], positions of operands, and None for NULL"
    if isinstance(pointers, (str, bytes)) or not isinstance(pointers, Sequence):
        raise KernelError(f"kernel {name!r}: pointers is {pointers!r}\n  fix: {fix}")
    for position in pointers:
        if position is not None and (type(position) is not int or position < 0 or (count is not None and position >= count)):
            has = "" if count is None else f"; there are {count}"
            raise KernelError(f"kernel {name!r}: {position!r} is among its pointers, and is no position of an operand{has}\n"
                              f"  fix: {fix}")
    return tuple(pointers)


def _require_kernel_of(name: str, entry: str, text: str) -> None:
    """Raise KernelError where the text defines the entry with other parameters: it would link, but be called with wrong ones."""
    plain = re.search(rf"\b{entry}\s*\(([^()]*)\)\s*{{", text)
    if plain is not None and not ("int64_t" in plain[1] and "double" in plain[1]):
        raise KernelError(f"kernel {name!r}: its source defines {entry}({' '.join(plain[1].split())}), and a kernel is called with "
                          f"ptr, ints and floats\n  fix: TG_KERNEL({entry}) {{ … }}, where ptr[0] is the output")


def _operands(spec: Spec) -> tuple[int | None, ...]:
    """Return the positions of all operands in the order in which the op declares them; None for an absent one."""
    if not isinstance(spec.op, CompositeOp):
        return tuple(range(len(spec.inputs)))
    at = spec.role_index()
    named = (position if isinstance(position := at.get(role), int) else None for role in spec.op.operands)
    rest = at.get(spec.op.variadic or "", [])
    return (*named, *(rest if isinstance(rest, list) else []))
