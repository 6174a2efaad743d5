"""kernels/identity.py: what an identity covers, and what it leaves alone. Most tests import a small project, edit it, and import it
anew."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensor_graphs.kernels import identity, registry
from tensor_graphs.kernels.kernel import HostCall, Kernel, KernelError, source_of

ROOT = Path(__file__).parents[2]

PROJECT = {
    "own_kernel.py": """
import os
from tensor_graphs.kernels.kernel import HostCall, Kernel, source_of
import numpy as np
import near
from package.inner import deep
from package.several import *

SCALE = 2

def helper(x):
    return x * SCALE    # times two

def body(outs, ins, attrs):
    if os.environ.get("LATE"):
        import late
    outs[0][...] = helper(ins[0])

def made(scale, body=body):
    def closed(outs, ins, attrs, plus=1):
        outs[0][...] = ins[0] * scale + plus
    return Kernel("numpy.own", "numpy", "relu", lambda spec: HostCall(closed), lambda spec: None, "", __name__)

KERNEL = Kernel("numpy.own", "numpy", "relu", lambda spec: HostCall(body), lambda spec: None, source_of(body), __name__,
                sources=("table.bin", "code/own.c"))
""",
    "near.py": "import importlib\nimport random\nvalue = 1\nfar = importlib.import_module('far')\n"
               "further = getattr(importlib, 'import_' + 'module')('fur' + 'ther')\n",
    "further.py": "value = 1\n",
    "far.py": "try:\n    import compiled_one\nexcept ImportError:\n    pass\nHERE = 'script.py'\n",
    "script.py": "print('run by path')\n",
    "late.py": "value = 1\n",
    "apart.py": "value = 1\n",
    "random.py": "seed = 1\n",
    "package/__init__.py": "value = 1\n",
    "package/beside.py": "value = 1\n",
    "package/inner/__init__.py": "",
    "package/inner/deep.py": "from .. import beside\n",
    "package/several/__init__.py": "__all__ = ['one']\n",
    "package/several/one.py": "value = 1\n",
    "package/several/other.py": "value = 1\n",
    "space/part.py": "value = 1\n",
    "table.bin": "1",
    "code/own.c": '#include "own.h"\n',
    "code/own.h": '#include "../more.h"\n',
    "more.h": "#define VALUE 1\n",
}
MODULES = {name.partition("/")[0].removesuffix(".py") for name in PROJECT if name.endswith(".py")} - {"random"} | {"compiled_one"}


class Project:
    """A folder with a user's modules, imported again for each look at them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in PROJECT.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def edit(self, name: str, old: str, new: str) -> None:
        text = (self.folder / name).read_text()
        assert old in text
        self.write(name, text.replace(old, new))

    def module(self) -> Any:
        self.forget()
        importlib.invalidate_caches()
        return importlib.import_module("own_kernel")

    def identity(self) -> str:
        kernel: Kernel = self.module().KERNEL
        return kernel.identity

    def forget(self) -> None:
        for name in [n for n in sys.modules if n.partition(".")[0] in MODULES]:
            del sys.modules[name]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    made = Project(tmp_path)
    yield made
    made.forget()


COVERED = {
    "the function": ("own_kernel.py", "helper(ins[0])", "helper(ins[0]) + 1"),
    "a helper": ("own_kernel.py", "return x * SCALE", "return x * SCALE * SCALE"),
    "a constant": ("own_kernel.py", "SCALE = 2", "SCALE = 3"),
    "a number of another type": ("own_kernel.py", "SCALE = 2", "SCALE = 2.0"),
    "a docstring, which can be read": ("near.py", "import importlib\n", "'near'\nimport importlib\n"),
    "an imported module": ("near.py", "value = 1", "value = 2"),
    "what that imports by name": ("far.py", "pass", "pass\nvalue = 1"),
    "what that imports by a computed name": ("further.py", "value = 1", "value = 2"),
    "a file of code that is named": ("script.py", "run", "runs"),
    "an import inside a function": ("late.py", "value = 1", "value = 2"),
    "a package above a module": ("package/__init__.py", "value = 1", "value = 2"),
    "a relative import": ("package/beside.py", "value = 1", "value = 2"),
    "what a star means": ("package/several/one.py", "value = 1", "value = 2"),
    "a data file": ("table.bin", "1", "2"),
    "a C file": ("code/own.c", "#include", "/* c */ #include"),
    "a header": ("code/own.h", "#include", "// \n#include"),
    "a header's header": ("more.h", "1", "2"),
}


@pytest.mark.parametrize("what", COVERED)
def test_an_edit_of_what_a_kernel_is_made_of_gives_another_identity(project: Project, what: str) -> None:
    before = project.identity()
    assert project.identity() == before
    project.edit(*COVERED[what])
    assert project.identity() != before


HARMLESS = {
    "a comment": ("own_kernel.py", "# times two", "# twice"),
    "layout": ("own_kernel.py", "return x * SCALE", "\n    return (x *\n            SCALE)"),
    "a comment in an imported module": ("near.py", "value = 1", "# one\nvalue = 1"),
    "a module that it does not import": ("apart.py", "value = 1", "value = 2"),
    "a module that another one's name hides": ("random.py", "seed = 1", "seed = 2"),
    "a module beside those that a star means": ("package/several/other.py", "value = 1", "value = 2"),
}


@pytest.mark.parametrize("what", HARMLESS)
def test_an_edit_of_anything_else_leaves_the_identity_alone(project: Project, what: str) -> None:
    before = project.identity()
    project.edit(*HARMLESS[what])
    assert project.identity() == before


def test_the_folder_and_the_name_of_the_script_do_not_matter(project: Project, tmp_path: Path,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    before = project.identity()
    project.forget()
    monkeypatch.syspath_prepend(tmp_path / "moved")
    moved = Project(tmp_path / "moved")
    assert moved.identity() == before
    spec = importlib.util.spec_from_file_location("__tensor_graphs_main__", moved.folder / "own_kernel.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "__tensor_graphs_main__", module)
    spec.loader.exec_module(module)
    assert module.KERNEL.identity == before


def test_a_module_that_appears_later_counts_from_then_on(project: Project) -> None:
    before = project.identity()
    project.write("compiled_one.py", "value = 1")
    assert project.identity() != before


def test_an_installed_library_counts_by_its_version(project: Project) -> None:
    project.write("site-packages/library.py", "value = 1")
    project.write("site-packages/library-1.0.dist-info/METADATA", "")
    project.write("site-packages/other_name.py", "value = 1")
    project.write("site-packages/Other_Library-3.dist-info/RECORD", "other_name.py,,\n")
    project.edit("late.py", "value", "import library, other_name\nvalue")
    sys.path.insert(0, str(project.folder / "site-packages"))
    try:
        before = project.identity()
        project.edit("site-packages/library.py", "value = 1", "value = 2")
        assert project.identity() == before                         # its version says what it is
        for old, new in (("library-1.0", "library-1.1"), ("Other_Library-3", "Other_Library-4")):
            (project.folder / f"site-packages/{old}.dist-info").rename(project.folder / f"site-packages/{new}.dist-info")
            identity._metadata.cache_clear()
            identity._distribution.cache_clear()
            assert project.identity() != before
            before = project.identity()
    finally:
        sys.path.remove(str(project.folder / "site-packages"))


def test_modules_in_a_zip_file_and_in_a_namespace_count(project: Project) -> None:
    def zipped(text: str) -> None:
        with zipfile.ZipFile(project.folder / "packed.zip", "w") as archive:
            archive.writestr("packed_one.py", text)

    zipped("value = 1")
    project.edit("late.py", "value", "import packed_one, space.part\nvalue")
    sys.path.append(str(project.folder / "packed.zip"))
    try:
        before = project.identity()
        project.edit("space/part.py", "value = 1", "value = 2")
        between = project.identity()
        assert between != before
        zipped("value = 2")
        sys.path_importer_cache.pop(str(project.folder / "packed.zip"), None)
        assert project.identity() != between
    finally:
        sys.path.remove(str(project.folder / "packed.zip"))


def test_a_shared_library_beside_a_module_counts_by_its_bytes(project: Project) -> None:
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    project.edit("late.py", "value", "import compiled_one\nvalue")
    found = []
    for text in ("one", "two"):
        project.write("far.py", "pass\n")
        project.write(f"compiled_one{suffix}", text)
        found.append(project.identity())
    assert found[0] != found[1]


def test_what_is_bound_to_a_function_counts_as_far_as_it_is_data(project: Project) -> None:
    made: Callable[..., Kernel] = project.module().made
    values: list[Any] = [1, 2, 1.0, True, "1", None, (1, 2), [1, 2], {"a": 1}, {1, 2}, {1, 3}, 10**5000, np.arange(3),
                         np.arange(3.0), np.float32(1), np.zeros((2, 3)), np.zeros((3, 2)), ROOT, len, made(1).build,
                         made(2).build]
    identities = [made(value).identity for value in values]
    assert len(set(identities)) == len(values)
    assert identities == [made(value).identity for value in values]
    assert made(np.arange(3)).identity == made(np.arange(3)).identity
    assert made(object()).identity == made(object()).identity       # only its type counts


def test_code_without_a_file_has_an_identity_that_follows_the_code() -> None:
    def kernel(text: str, name: str = "numpy.made") -> Kernel:
        space: dict[str, Any] = {"__name__": __name__}
        exec(text, space)
        return Kernel(name, "numpy", "relu", lambda spec: HostCall(space["f"]), lambda spec: None, source_of(space["f"]), __name__)

    text = "def f(outs, ins, attrs):\n    outs[0][...] = [x for x in ins[0] if x in {'a', 'b', 'c', %s}]"
    assert kernel(text % 1).identity == kernel(f"# a comment\n\n{text % 1}").identity
    assert kernel(text % 1).identity != kernel(text % 2).identity   # the constant of an inner function
    named = "K = %s\ndef g(x): return x * K\ndef f(outs, ins, attrs): outs[0][...] = g(ins[0])"
    assert kernel(named % 1).identity == kernel(named % 1).identity != kernel(named % 2).identity
    assert " at 0x" not in source_of(kernel(text % 1).build(None).run)  # type: ignore[union-attr, arg-type]
    lambdas = [Kernel("numpy.made", "numpy", "relu", b, lambda spec: None, "", __name__) for b in (
        lambda spec: HostCall(print),
        lambda spec: HostCall(repr))]
    assert lambdas[0].identity != lambdas[1].identity


def test_identities_are_the_same_in_every_process_whatever_the_seed_of_hashes() -> None:
    code = ("from tensor_graphs.kernels.registry import all_kernels\n"
            "print(*(k.identity for k in all_kernels(('numpy', 'c', 'torch'))))")

    def identities(seed: str, *flags: str) -> list[str]:
        done = subprocess.run([sys.executable, *flags, "-c", code], capture_output=True, text=True, check=True, timeout=120,
                              cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed})
        return done.stdout.split()

    here = [k.identity for k in registry.all_kernels(("numpy", "c", "torch"))]
    assert identities("1") == identities("2", "-O") == here


def test_a_missing_source_is_named_with_the_folder_and_a_fix(project: Project) -> None:
    (project.folder / "table.bin").unlink()
    with pytest.raises(KernelError, match=r"^kernel 'numpy\.own' names 'table\.bin' in its sources, and there is no such file: "
                                          rf"{project.folder}/table\.bin\n  fix: a path from the folder of its module"):
        project.module()


def test_a_file_that_is_edited_after_it_was_imported_is_seen(project: Project) -> None:
    kernel: Kernel = project.module().KERNEL
    assert kernel.code.changed() is None
    project.edit("near.py", "value = 1", "value = 1  # the same")
    assert kernel.code.changed() is None
    project.edit("near.py", "value = 1", "value = 2")
    assert kernel.code.changed() == str(project.folder / "near.py")
    again = Kernel("numpy.again", "numpy", "relu", kernel.build, kernel.accepts, "", kernel.module)
    assert again.code.changed() == str(project.folder / "near.py")  # it runs what was imported before the edit
    project.edit("near.py", "value = 2", "value = 1")
    (project.folder / "table.bin").unlink()
    assert kernel.code.changed() == str(project.folder / "table.bin")


def test_of_this_package_only_the_folders_of_backends_count() -> None:
    files = {name: {Path(f.path).relative_to(identity.HOUSE).as_posix() for f in registry.kernel_named(name).code.files}
             for name in ("numpy.softmax", "c.softmax", "torch.softmax")}
    numpys = ("__init__", "atomics", "backend", "composites", "scan")
    assert files["numpy.softmax"] == {f"kernels/numpy/{name}.py" for name in numpys}
    ours = ("__init__", "backend", "convolutions", "library", "scratch", "screened_argmax")
    assert files["c.softmax"] == {f"kernels/c/{name}.py" for name in ours}
    assert files["torch.softmax"] > {"kernels/torch/ops.py", "kernels/torch/backend.py", "kernels/numpy/composites.py"}
