"""The page that a user imports: what is on it, and that it is quick to open."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import tensor_graphs as tg
from tensor_graphs.language import composites
from tensor_graphs.language.composite import LIBRARY
from tensor_graphs.language.dtypes import DTYPES, PYTHON_NAMES

ROOMS = ("language", "meaning", "devices", "kernels", "codegen", "records", "costs", "rewrites", "paths", "runtime",
         "profiling", "tuning", "compiler", "models", "frontends", "cli")
HEAVY = {"torch", "sympy", "sqlalchemy", "scipy", "transformers", "tokenizers", "rich", "typer", "safetensors"}


def modules_loaded_by(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after running `code`."""
    code += "\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.split()}


def test_importing_the_package_loads_no_heavy_library():
    loaded = modules_loaded_by("import tensor_graphs as tg\n"
                               "tg.softmax(tg.input('x', (tg.dim('n', 1, 8), 4)) @ tg.parameter('w', (4, 4)))")
    assert "tensor_graphs" in loaded and not loaded & HEAVY


def test_importing_the_package_loads_only_the_language():
    code = "import tensor_graphs, sys; print(*[m for m in sys.modules if m.startswith('tensor_graphs.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {name.split(".")[1] for name in done.stdout.split()} == {"errors", "blas_threads", "interrupted", "language"}


@pytest.mark.parametrize("name", sorted(tg.LAZY))
def test_a_lazy_name_loads_its_room_and_is_kept(name):
    module, there = tg.LAZY[name]
    assert getattr(tg, name) is getattr(importlib.import_module(module), there)
    assert name in vars(tg) and name in dir(tg)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError) as caught:
        _ = tg.softmaxx
    assert str(caught.value) == "module 'tensor_graphs' has no attribute 'softmaxx'"


def test_no_name_of_the_page_is_the_name_of_a_room():
    assert not set(ROOMS) & set(tg.LAZY)
    for room in ROOMS:
        found = vars(tg).get(room)
        assert found is None or found.__name__ == f"tensor_graphs.{room}"


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_dtype_is_on_the_page(name):
    assert getattr(tg, PYTHON_NAMES.get(name, name)) is DTYPES[name]


def test_every_library_composite_with_a_function_of_its_own_is_on_the_page():
    for name, op in LIBRARY.items():
        if getattr(composites, name, None) is op:
            assert getattr(tg, name) is op, name
