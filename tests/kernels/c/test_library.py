"""kernels/c/library.py: a kernel's identity covers all the code it comes from, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tensor_graphs as tg
from tensor_graphs.devices import c_code, toolchain
from tensor_graphs.devices.c_code import headers_of
from tensor_graphs.kernels.c import backend, library
from tensor_graphs.kernels.c.backend import ROWS
from tensor_graphs.kernels.kernel import make_together
from tensor_graphs.kernels.registry import load_backend
from tensor_graphs.kernels.signature import signature_of


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The sources in a folder where they may be changed."""
    for path in library.FOLDER.iterdir():
        if path.suffix in (".c", ".h"):
            shutil.copy(path, tmp_path)
    return tmp_path


def changed_by(folder: Path, name: str) -> set[str]:
    """The files of kernels whose identity changes with a file."""
    files = sorted({row.file for row in ROWS})
    before = {file: library.identity_of(folder / file) for file in files}
    path = folder / name
    path.write_text(path.read_text() + "/* another */\n")
    return {file for file in files if library.identity_of(folder / file) != before[file]}


def test_a_product_changes_with_the_tile_it_is_made_of(copied: Path) -> None:
    assert changed_by(copied, "gemm.c") >= {"product.c", "attention.c"}
    assert not changed_by(copied, "gemm.c") & {"rms_norm.c", "rope_table.c", "movement.c"}


def test_wide_code_changes_no_narrow_kernel(copied: Path) -> None:
    narrow = {"product.c", "attention.c", "rms_norm.c", "softmax.c"}
    assert changed_by(copied, "wide_gemm.c") == {"wide_product.c", "wide_attention.c"}
    assert not changed_by(copied, "wide.h") & narrow and not changed_by(copied, "wide_gemm.h") & narrow


def test_every_kernel_changes_with_the_shared_headers_and_the_pool_and_none_with_the_runner(copied: Path) -> None:
    assert changed_by(copied, "tg.h") == changed_by(copied, "pool.c") == {row.file for row in ROWS}
    assert not changed_by(copied, "runner.c")


def test_headers_are_followed_through_one_another(copied: Path) -> None:
    assert [h.name for h in headers_of(copied / "wide_softmax.c")] == ["loops.h", "real.h", "rows.h", "tg.h", "vec.h", "wide.h"]
    assert [p.name for p in library.code_of(copied / "product.c")] == ["product.c", "gemm.c", "pool.c"]
    assert [p.name for p in library.code_of(copied / "rms_norm.c")] == ["rms_norm.c", "pool.c"]


def test_a_kernel_stores_the_text_of_all_its_sources() -> None:
    source = {k.name: k.source for k in load_backend("c")}
    assert "tile_product" in source["c.linear"] and "tg_linear_f32" in source["c.linear"]
    assert "tile_product" not in source["c.softmax"]
    assert len({k.identity for k in load_backend("c")}) == len(load_backend("c"))


def test_every_c_file_is_in_one_library_and_each_is_linked_with_those_that_its_code_comes_from() -> None:
    parts = {library.part_of(path): library.sources(library.part_of(path)) for path in library.sources()}
    assert sorted(path for paths in parts.values() for path in paths) == list(library.sources()) and all(parts.values())
    assert {path.name for path in parts[library.CORE]} == set(library.IN_CORE)
    assert {path.name for path in parts["convolutions"]} == {"depthwise.c", "direct_conv.c"}
    assert set(library.TOGETHER) <= {path.name for path in library.sources()} and set(library.AHEAD) <= parts.keys()
    assert library.linked_with("product") == ["gemm"] and library.linked_with("amx_product") == ["gemm", "product"]
    assert library.linked_with("rms_norm") == library.linked_with(library.CORE) == []
    for part in parts:                                              # `-z defs`: what is missing there is an error of the linker
        assert library.load().part(part)


def test_code_that_calls_our_functions_is_linked_with_the_libraries_that_have_them() -> None:
    assert [path.name for path in library.called_by("tg_parallel(f, &a, 1); tg_min(a, b); tg_nobody();")] == []
    assert [path.name for path in library.called_by("tg_rows_product(n, 1);")] == ["gemm.c"]
    assert [path.name for path in library.called_by("tg_wide_rows_product(n, 1); tg_rms_norm")] == ["rms_norm.c", "wide_gemm.c"]
    core, *others = library.load().paths("tg_rms_norm(out); tg_rows_product(n, 1);")
    assert core == library.load().path and [path.name.rpartition("-")[0] for path in others] == [
        "tensor_graphs_c_gemm", "tensor_graphs_c_rms_norm"]


def test_kernels_whose_library_cannot_be_compiled_are_left_out_and_the_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    built, loaded = toolchain.build_library, library.NativeLibrary(library.load().path)

    def refuse(sources: tuple[Path, ...], **how: object) -> Path:
        if any(path.name.startswith("wide_") for path in sources):
            raise c_code.ToolchainError("the compiler was killed")
        return built(sources, **how)  # type: ignore[arg-type]  # as it was given

    monkeypatch.setattr(toolchain, "build_library", refuse)
    monkeypatch.setattr(library, "_LOADED", loaded)
    kernels = {k.name: k for k in load_backend("c")}
    wide = next(k for name, k in kernels.items() if k.op == "softmax" and name != "c.softmax")
    x = tg.input("x", (4, 8), tg.f32)
    spec = signature_of(tg.softmax(x)).spec
    assert make_together([(kernels["c.softmax"], spec), (wide, spec)]) == [None, "the compiler was killed"]
    with pytest.raises(c_code.ToolchainError, match="was killed"):
        loaded.address("tg_softmax_f64")
    assert loaded.address("tg_softmax") and loaded.address("tg_copy_strided")


def test_a_library_is_compiled_when_it_is_asked_for_and_what_it_is_linked_with_before(monkeypatch: pytest.MonkeyPatch) -> None:
    built, made = toolchain.build_library, []

    def note(sources: tuple[Path, ...], **how: object) -> Path:
        made.append(how["name"])
        return built(sources, **how)  # type: ignore[arg-type]  # as it was given

    monkeypatch.setattr(toolchain, "build_library", note)
    monkeypatch.setattr(library, "_LOADED", None)
    assert library.available()[0] and made == ["tensor_graphs_c"]
    library.load().address("tg_rms_norm")
    library.load().address("tg_softmax")
    assert made[1:] == ["tensor_graphs_c_rms_norm", "tensor_graphs_c_softmax"]
    library.load().address("tg_linear_f32")
    assert made[3:] == ["tensor_graphs_c_gemm", "tensor_graphs_c_product"]
    library.ahead().join()
    library.settle()
    assert sorted(made) == sorted(f"tensor_graphs_c_{part}".rstrip("_") for part in {*library.AHEAD, library.CORE, "softmax"})


def test_ahead_of_a_search_only_libraries_that_its_ops_may_run_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[list[str]] = []
    monkeypatch.setattr(library, "ahead", begun.append)
    for ops in ({"softmax", "exp"}, {"linear", "gelu"}, {"linear_argmax", "write_rows", "conv"}):
        backend.compile_ahead(ops)
    assert begun == [[], ["movement", "product"], ["movement", "product", "screened_argmax", "convolutions"]]
    assert {*backend.LIKELY} <= set(map(library.part_of, library.sources()))


def test_what_is_compiled_ahead_is_compiled_once_and_who_asks_meets_what_went_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    there, made = library.load(), list[str]()

    def build() -> library.NativeLibrary:
        made.append("core")
        if len(made) <= 2:
            raise c_code.ToolchainError("no compiler")
        return there

    monkeypatch.setattr(library, "build", build)
    monkeypatch.setattr(library, "_LOADED", None)
    library.ahead().join()
    assert made == ["core"] and library.available() == (False, "no compiler")
    library.ahead().join()
    assert library.load() is there and len(made) == 3
