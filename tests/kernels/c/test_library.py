"""kernels/c/library.py: a kernel's identity covers all the code it comes from, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tensor_graphs.devices.toolchain import headers_of
from tensor_graphs.kernels.c import library
from tensor_graphs.kernels.c.backend import ROWS
from tensor_graphs.kernels.registry import load_backend


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
    assert changed_by(copied, "gemm.c") >= {"linear.c", "matmul.c", "attention.c"}
    assert not changed_by(copied, "gemm.c") & {"norms.c", "elementwise.c", "rope.c", "movement.c"}


def test_wide_code_changes_no_narrow_kernel(copied: Path) -> None:
    narrow = {"linear.c", "matmul.c", "attention.c", "norms.c", "elementwise.c"}
    assert changed_by(copied, "wide_gemm.c") == {"wide_linear.c", "wide_matmul.c", "wide_attention.c"}
    assert not changed_by(copied, "wide.h") & narrow and not changed_by(copied, "wide_gemm.h") & narrow


def test_every_kernel_changes_with_the_shared_headers_and_the_pool_and_none_with_the_runner(copied: Path) -> None:
    assert changed_by(copied, "tg.h") == changed_by(copied, "pool.c") == {row.file for row in ROWS}
    assert not changed_by(copied, "runner.c")


def test_headers_are_followed_through_one_another(copied: Path) -> None:
    assert [h.name for h in headers_of(copied / "wide_linear.c")] == ["gemm.h", "tg.h", "vec.h", "wide.h", "wide_gemm.h"]
    assert [p.name for p in library.code_of(copied / "linear.c")] == ["linear.c", "gemm.c", "pool.c"]
    assert [p.name for p in library.code_of(copied / "norms.c")] == ["norms.c", "pool.c"]


def test_a_kernel_stores_the_text_of_all_its_sources() -> None:
    source = {k.name: k.source for k in load_backend("c")}
    assert "tile_product" in source["c.linear"] and "stream_rows" in source["c.linear"]
    assert "tile_product" not in source["c.softmax"]
    assert len({k.identity for k in load_backend("c")}) == len(load_backend("c"))
