"""The page that a user imports: what is on it, and that it is quick to open."""

from __future__ import annotations

import importlib
import inspect
import pydoc
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tensor_graphs as tg
from tensor_graphs.language import composites
from tensor_graphs.language.composite import LIBRARY
from tensor_graphs.language.dtypes import DTYPES, PYTHON_NAMES

PROJECT = tomllib.loads((Path(__file__).resolve().parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
ROOMS = [name.strip("()") for name in PROJECT["tool"]["importlinter"]["contracts"][0]["layers"]]
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
    rooms = {name.split(".")[1] for name in done.stdout.split()}
    assert rooms == {"errors", "blas_thread_sleep", "interrupted", "language", "notebook"}


@pytest.mark.parametrize("name", sorted(tg.LAZY))
def test_a_lazy_name_loads_its_room_and_is_kept(name):
    module, there = tg.LAZY[name]
    home = importlib.import_module(module)
    assert getattr(tg, name) is (getattr(home, there) if there else home)
    assert name in vars(tg) and name in dir(tg)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError) as caught:
        _ = tg.nonsense
    assert str(caught.value) == "module 'tensor_graphs' has no attribute 'nonsense'"


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


def functions() -> list[str]:
    """The names of the page that are called: functions and composites, no classes, dtypes and aliases of types."""
    return [n for n in tg.__all__ if callable(getattr(tg, n)) and hasattr(getattr(tg, n), "__name__")
            and not isinstance(getattr(tg, n), type)]


def test_completion_lists_what_a_user_types_and_nothing_else():
    assert dir(tg) == tg.__all__ == sorted(set(tg.__all__)) and set(tg.LAZY) <= set(dir(tg))
    assert all(not n.startswith("_") and getattr(tg, n) is not None for n in dir(tg))
    assert not {"importlib", "annotations", "Any", "TYPE_CHECKING", "LAZY", "language", "errors"} & set(dir(tg))
    bound = {n for n in vars(tg) if not n.startswith("_")} - set(dir(tg)) - set(ROOMS)
    assert bound <= {"importlib", "annotations", "Any", "TYPE_CHECKING", "ModuleType", "LAZY", "argument_checks",
                     "blas_thread_sleep", "errors", "interrupted", "json_checks", "normal_numbers", "notebook", "phase_times",
                     "regular_file"}


def test_functions_show_their_true_signatures_and_what_they_do():
    for name in functions():
        function = getattr(tg, name)
        signature = inspect.signature(function)
        kinds = {p.kind for p in signature.parameters.values()}
        if name not in ("composite", "rule"):                      # decorators that pass options on
            assert inspect.Parameter.VAR_KEYWORD not in kinds, name
            assert inspect.Parameter.VAR_POSITIONAL not in kinds or name in ("concat", "stack", "einsum", "dim_max", "dim_min")
        assert all(p.annotation is not p.empty for p in signature.parameters.values()), name
        assert signature.return_annotation is not signature.empty, name
        assert len(inspect.getdoc(function) or "") > 20, name
        shown = pydoc.plain(pydoc.render_doc(function))
        call = shown.partition(f"{function.__name__}(")[2]
        assert call and all(p in call for p in signature.parameters), name
        assert (inspect.getdoc(function) or "").splitlines()[0] in shown, name


def test_functions_of_the_language_say_what_they_raise():
    names = {n for n in functions() if getattr(tg, n).__module__.startswith("tensor_graphs.language.")} - {"dim_max", "dim_min"}
    assert len(names) > 100 and [n for n in sorted(names) if "Raises" not in (getattr(tg, n).__doc__ or "")] == []


def test_a_composite_is_called_as_its_signature_says():
    x = tg.input("x", (2, 3))
    assert list(inspect.signature(tg.softmax).parameters) == ["x", "axis"]
    assert inspect.signature(tg.softmax).parameters["axis"].default == -1
    assert tg.softmax.__name__ == "softmax" and tg.softmax.__module__ == "tensor_graphs.language.composites.normalisation"
    assert tg.softmax(x, 0) is tg.softmax(x, axis=0) is tg.softmax(x=x, axis=0)

    class Model:
        activation = tg.silu                                       # an attribute of a class stays the op: no self is put in front

    assert Model().activation is tg.silu is Model.activation
