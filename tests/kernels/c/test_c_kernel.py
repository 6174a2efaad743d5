"""kernels/c/c_kernel.py: a C kernel of a user's own is compiled, called and judged as ours are."""

from __future__ import annotations

import importlib
import logging
import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.devices.c_code import ToolchainError
from tensor_graphs.kernels import registry
from tensor_graphs.kernels.c import backend as c_backend
from tensor_graphs.kernels.c import library
from tensor_graphs.kernels.kernel import Kernel, KernelError, NativeCall, Spec
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language.call_errors import CallError
from tensor_graphs.language.node import Node
from tensor_graphs.measure.isolation.replies import Reply
from tensor_graphs.measure.isolation.worker_process import CRASHED
from tensor_graphs.measure.judge import Judge, _Dialogue
from tensor_graphs.measure.points.single_op_plans import single_kernel_plan
from tensor_graphs.records.database import open_database

ROOT = Path(__file__).parents[3]
N = tg.dim("n", 1, 4096)

POOL = r"""
#include "loops.h"
#include "vec.h"

/* ints: rows, width.  Slot 0 is shared by the parts, slot 1 is each part's own. */
TG_INLINE void rows(const call *c, int64_t from, int64_t to) {
    const int64_t d = c->ints[1];
    float *own = tg_scratch(1, (size_t)d * 4);
    for (int64_t row = from; row < to; row++) {
        const float *x = (const float *)c->ptr[1] + row * d;
        float *out = (float *)c->ptr[0] + row * d, most = -__builtin_inff();
        double sum = 0;
        for (int64_t i = 0; i < d; i++) most = x[i] > most ? x[i] : most;
        for (int64_t i = 0; i < d; i++) sum += own[i] = f32_exp(x[i] - most);
        for (int64_t i = 0; i < d; i++) out[i] = (float)(own[i] / sum);
    }
}

ROWS_KERNEL(my_softmax, ints[0], 4 * ints[1], rows)
"""
SCALED = r"""
#include "tg.h"
#include "scale.h"

double twice(double x);

TG_KERNEL(scaled) {
    for (int64_t i = 0; i < ints[0]; i++) ((float *)ptr[0])[i] = (float)(twice(SCALE * floats[0]) * ((const float *)ptr[1])[i]);
}
"""


def last_axis(spec: Spec) -> tuple[Any, Any]:
    shape = spec.inputs[0].shape
    return math.prod(shape[:-1]), shape[-1]


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Unregister what a test registers."""
    before = {k.name for k in registry.all_kernels(("c", "numpy"))}
    yield
    for name in {k.name for k in registry.all_kernels(("c", "numpy"))} - before:
        registry.unregister(name)


def softmax_kernel(**options: Any) -> Kernel:
    given: dict[str, Any] = {"source": POOL, "entry": "my_softmax", "dtypes": ["f32"], "ints": last_axis,
                             "scratch": lambda spec: library.load().threads() * (4 * spec.inputs[0].shape[-1] + 4096)}
    return tg.c_kernel("softmax", **(given | options))


def ran(kernel: Kernel, node: Node, **arrays: np.ndarray) -> np.ndarray:
    """Return the output of a plan of this one kernel."""
    graph = tg.graph(node)
    return np.asarray(tg.bind(single_kernel_plan(graph, kernel)).run(arrays)["out"])


def test_a_kernel_with_the_pool_the_vector_header_and_scratch_memory_is_right() -> None:
    kernel = softmax_kernel()
    x = np.random.default_rng(1).standard_normal((3000, 40)).astype(np.float32)
    node = tg.softmax(tg.input("x", (N, 40)))
    e = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(ran(kernel, node, x=x), e / e.sum(-1, keepdims=True), rtol=1e-5)
    turned = tg.softmax(tg.permute(tg.input("x", (40, N)), (1, 0)))         # a copy is made: operands are contiguous
    np.testing.assert_allclose(ran(kernel, turned, x=np.ascontiguousarray(x.T)), e / e.sum(-1, keepdims=True), rtol=1e-5)
    plan = single_kernel_plan(tg.graph(node), kernel)
    assert plan.memory(n=64).total - replace_scratch(plan, node).memory(n=64).total == library.load().threads() * (160 + 4096)


def replace_scratch(plan: Any, node: Node) -> Any:
    return single_kernel_plan(tg.graph(node), softmax_kernel(name="c.without_scratch", scratch=0))


def test_it_runs_on_the_pool_and_the_scratch_memory_of_our_own_kernels() -> None:
    ours = library.load()
    before = ours.threads()
    kernel = softmax_kernel()
    x = np.zeros((512, 1024), np.float32)
    node = tg.softmax(tg.input("x", (512, 1024)))
    try:
        for threads in (1, 2):
            ours.set_threads(threads)
            ours.scratch_watch()
            ran(kernel, node, x=x)
            assert 4096 <= ours.scratch_watch() <= threads * 4096
        assert ours.scratch_watch() == 0
    finally:
        ours.set_threads(before)


def test_its_call_is_a_native_call_like_any_other_and_names_its_library() -> None:
    kernel = softmax_kernel()
    call = kernel.build(Spec.of(tg.softmax(tg.input("x", (N, 40)))))
    assert isinstance(call, NativeCall) and call.symbol == "my_softmax" and call.pointers == (0,) and call.ints == (N, 40)
    assert Path(call.image).parent == library.load().path.parent and Path(call.image).name.startswith("c.my_softmax-")
    assert kernel.backend == "c" and kernel.contiguous and kernel.source == POOL
    node = tg.linear(tg.input("x", (2, 3)), tg.input("w", (4, 3)))
    absent = tg.c_kernel("linear", source=POOL, entry="my_softmax", name="c.my_linear", dtypes=["f32"])
    found = absent.build(Spec.of(node))
    assert isinstance(found, NativeCall) and found.pointers == (0, 1, None)


def test_a_file_with_headers_and_a_second_file_and_float_arguments(tmp_path: Path) -> None:
    (tmp_path / "scaled.c").write_text(SCALED)
    (tmp_path / "twice.c").write_text("double twice(double x) { return 2 * x; }\n")
    (tmp_path / "scale.h").write_text("#define SCALE 3\n")
    triple = tg.composite(lambda x: x * 3.0, name="triple")
    kernel = tg.c_kernel(triple, source=tmp_path / "scaled.c", entry="scaled", dtypes=[tg.f32], sources=[tmp_path / "twice.c"],
                         ints=lambda spec: [math.prod(spec.outputs[0].shape)], floats=[0.5])
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(ran(kernel, triple(tg.input("x", (2, 3))), x=x), 3 * x)
    assert {Path(f.path).name for f in kernel.code.files} >= {"scaled.c", "twice.c", "scale.h"}


ROWS = r"""
#include "tg.h"
/* ints: rows, width, where the next row begins */
TG_KERNEL(twice_rows) {
    for (int64_t r = 0; r < ints[0]; r++)
        for (int64_t i = 0; i < ints[1]; i++)
            ((float *)ptr[0])[r * ints[1] + i] = 2 * ((const float *)ptr[1])[r * ints[2] + i];
    (void)floats;
}
"""


def test_rows_with_gaps_are_read_where_they_lie() -> None:
    twice = tg.composite(lambda x: x + x, name="twice")
    kernel = tg.c_kernel(twice, source=ROWS, entry="twice_rows", dtypes=["f32"], accepts=lambda spec: None,
                         ints=lambda spec: [*spec.inputs[0].shape, spec.inputs[0].shape[1]],
                         strided=lambda spec, strides: [*spec.inputs[0].shape, strides[0][0]] if strides[0][1] == 1 else None)
    wide = tg.input("x", (N, 40))
    x = np.random.default_rng(1).standard_normal((7, 40)).astype(np.float32)
    for cut, copies, columns in ((wide[:, 3:19], 0, x[:, 3:19]), (wide[:, 0:40:2], 1, x[:, ::2])):
        plan = single_kernel_plan(tg.graph(twice(cut)), kernel)
        assert len(plan.variants[0].program.instructions) == 1 + copies
        np.testing.assert_array_equal(tg.bind(plan).run({"x": x})["out"], 2 * columns)
    wrong = tg.c_kernel(twice, name="c.wrong", source=ROWS, entry="twice_rows", dtypes=["f32"], ints=lambda spec: [1, 1, 1],
                        strided=lambda spec, strides: "many")
    with pytest.raises(KernelError, match=r"'c.wrong': what strided returns is 'many', which is no sequence of numbers\n  fix: "):
        single_kernel_plan(tg.graph(twice(wide[:, 3:19])), wrong)


def test_two_kernels_may_call_their_functions_the_same() -> None:
    made = [tg.c_kernel("relu", name=f"c.constant_{value}", entry="constant", dtypes=["f32"], source=f"""
#include "tg.h"
TG_KERNEL(constant) {{ ((float *)ptr[0])[0] = {value}; (void)ints, (void)floats; }}
""") for value in (1, 2)]
    node = tg.relu(tg.input("x", (1,)))
    assert [float(ran(k, node, x=np.zeros(1, np.float32))[0]) for k in made] == [1, 2]


COVERED = {
    "the text": ("scaled.c", "floats[0]", "floats[0] * 1"),
    "a comment, as its bytes count": ("scaled.c", "\ndouble", "\n/* */ double"),
    "a header": ("scale.h", "3", "4"),
    "a second file": ("twice.c", "2 * x", "x * 2"),
}


@pytest.mark.parametrize("what", COVERED)
def test_an_identity_covers_the_text_its_headers_and_its_other_files(what: str, tmp_path: Path) -> None:
    files = {"scaled.c": SCALED, "twice.c": "double twice(double x) { return 2 * x; }\n", "scale.h": "#define SCALE 3\n"}

    def identity(folder: str, as_text: bool) -> str:
        where = tmp_path / folder
        where.mkdir(exist_ok=True)
        for name, text in files.items():
            (where / name).write_text(text)
        space = {"__name__": "session", "tg": tg, "text": files["scaled.c"] if as_text else where / "scaled.c", "where": where}
        source = "text" if not as_text else "'#include \"' + str(where / 'scaled.c') + '\"\\n'"
        exec(f"kernel = tg.c_kernel('relu', source={source}, entry='scaled', sources=[where / 'twice.c'], dtypes=['f32'])", space)
        found: Kernel = space["kernel"]
        return found.identity

    before = [identity("one", as_text) for as_text in (False, True)]
    assert identity("other", False) == before[0]                    # the folder does not matter
    name, old, new = COVERED[what]
    files[name] = files[name].replace(old, new)
    after = [identity("one", as_text) for as_text in (False, True)]
    assert not {*before} & {*after}


def test_an_identity_covers_the_entry_our_headers_and_the_pool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    twin = POOL + "ROWS_KERNEL(other_softmax, ints[0], 4 * ints[1], rows)\n"
    first = softmax_kernel(name="c.one", source=twin)
    registry.unregister("c.one")
    assert first.identity == softmax_kernel(name="c.one", source=twin).identity
    registry.unregister("c.one")
    assert first.toolchain != softmax_kernel(name="c.one", source=twin, entry="other_softmax").toolchain
    for name in ("vec.h", "pool.c"):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        for path in library.FOLDER.iterdir():
            if path.suffix in (".c", ".h"):
                (folder / path.name).write_text(path.read_text() + ("/* edited */\n" if path.name == name else ""))
        with monkeypatch.context() as patch:
            patch.setattr(library, "FOLDER", folder)
            patch.setattr("tensor_graphs.kernels.c.c_kernel.Image.path", lambda self: Path("nowhere"))
            registry.unregister("c.one")
            assert softmax_kernel(name="c.one", source=twin).toolchain != first.toolchain


def test_another_number_in_what_it_is_called_with_is_another_kernel() -> None:
    def made(name: str, factor: int) -> Kernel:
        return replace(softmax_kernel(name=name, ints=lambda spec: (factor, 2)), name="c.same")

    assert made("c.one", 1).identity != made("c.two", 2).identity


# ---- what is wrong with it -------------------------------------------------------------------------------------------

BAD = r"""
#include "tg.h"

TG_KERNEL(bad) {
    ((float *)ptr[0])[0] = undeclared;
}
"""


def test_a_mistake_is_shown_where_it_is_written_in_the_file_that_declares_the_kernel() -> None:
    line = Path(__file__).read_text().split("\n").index("    ((float *)ptr[0])[0] = undeclared;") + 1
    with pytest.raises(ToolchainError) as caught:
        tg.c_kernel("relu", source=BAD, entry="bad", dtypes=["f32"])
    said = str(caught.value)
    assert said.startswith("kernel 'c.bad': cannot compile c.bad.c: the compiler failed with exit status 1.\n")
    assert f"{__file__}:{line}:28: error:" in said and "undeclared" in said
    with pytest.raises(KernelError, match=r"^no kernel is named 'c\.bad' here"):
        registry.kernel_named("c.bad")


def test_a_mistake_in_a_text_that_no_file_has_is_shown_by_its_line_in_the_text() -> None:
    with pytest.raises(ToolchainError, match=r"\nc\.bad\.c:5:28: error: .*undeclared"):
        tg.c_kernel("relu", source=BAD.replace("ptr[0]", "ptr[1]"), entry="bad", dtypes=["f32"])


def test_a_text_without_the_header_is_told_which_one() -> None:
    with pytest.raises(ToolchainError, match=r"fix: #include \"tg\.h\" at its beginning"):
        tg.c_kernel("relu", source="TG_KERNEL(bare) { (void)ptr; }\n", entry="bare", dtypes=["f32"])
    with pytest.raises(ToolchainError) as caught:
        tg.c_kernel("relu", source="int x = ;\n", entry="bare", dtypes=["f32"])
    assert "TG_KERNEL" not in str(caught.value)


def test_a_mistake_in_a_file_is_shown_there(tmp_path: Path) -> None:
    (tmp_path / "bad.c").write_text(BAD)
    with pytest.raises(ToolchainError, match=rf"\n{tmp_path}/bad\.c:5:28: error: .*undeclared"):
        tg.c_kernel("relu", source=tmp_path / "bad.c", entry="bad", dtypes=["f32"])


@pytest.mark.parametrize(("options", "said"), [
    ({"entry": "missing"}, r"^the source of kernel 'c\.missing' has no function 'missing'\n  fix: TG_KERNEL\(missing\)"),
    ({"entry": "no name"}, r"^kernel 'c\.no name': 'no name' is no name of a C function\n  fix: "),
    ({"dtypes": ()}, r"^kernel 'c\.my_softmax' does not say which arrays it can read\n  fix: dtypes="),
    ({"source": "nowhere.c"}, r"^kernel 'c\.my_softmax' is made of 'nowhere\.c', and there is no such file: \S+\n  fix: a path"),
    ({"sources": "no.c"}, r"^kernel 'c\.my_softmax' is made of 'no\.c', and there is no such file"),
    ({"source": '#include "tg.h"\nint f(void);\nTG_KERNEL(my_softmax) { f(); }\n'}, r"cannot link c\.my_softmax: (?s:.*)f"),
    ({"ints": 3}, r"^kernel 'c\.my_softmax': ints is 3, which is neither .*\n  fix: ints=lambda spec"),
    ({"ints": "12"}, "ints is '12'"), ({"ints": [1, "2"]}, "number 1 of ints is '2', a str\n  fix: "),
    ({"ints": [1.5]}, "number 0 of ints is 1.5, a float"), ({"floats": ["x"]}, "number 0 of floats is 'x', a str\n  fix: "),
    ({"source": '#include "tg.h"\nvoid my_softmax(float *x, int n) { x[0] = n; }\n'},
     r"its source defines my_softmax\(float \*x, int n\), and .*\n  fix: TG_KERNEL\(my_softmax\)"),
    ({"name": "c.softmax"}, r"^'c\.softmax' is the name of a kernel of ours"),
    ({"name": "two words"}, r"^a kernel cannot be named 'two words': that is no name: .*\n  fix: name=\"c\.two_words\"$"),
    ({"name": "foo.x"}, r"^a kernel cannot be named 'foo\.x': .* of the backend 'c', on which it runs\n  fix: name=\"c\.x\"$"),
    ({"name": "numpy.k"}, r"^a kernel cannot be named 'numpy\.k': that is no name of the backend 'c'"),
    ({"name": 3}, "^a kernel cannot be named 3: that is of type int, and no text"),
    ({"in_place": ((0, 7),)}, r"^kernel 'c\.my_softmax': in_place names operand 7, which softmax does not have; it has 1\n  fix: "),
    ({"in_place": ((1, 0),)}, r"in_place names output 1, which softmax does not have; it has 1\n"),
    ({"in_place": (0, 0)}, r"in_place is \(0, 0\), which is no sequence of pairs \(output, operand\)\n  fix: "),
    ({"ints": [1] * 40}, r"^kernel 'c\.my_softmax' is to be called with 40 ints; there are 32 at most$"),
    ({"ints": [2**70]}, r"number 0 of ints is .*, which does not fit 64 bits$"),
    ({"ints": lambda spec, n: [n]}, r"ints is called with 1 argument \(spec\), and takes \(spec, n\)\n  fix: ints=lambda spec: …"),
    ({"scratch": lambda spec, n: n}, r"scratch is called with 1 argument \(spec\)"), ({"scratch": -3}, "scratch is -3"),
    ({"accepts": lambda: None}, r"accepts is called with 1 argument \(spec\), and takes \(\)"),
    ({"strided": lambda spec: None}, r"strided is called with 2 arguments \(spec, strides\)"),
    ({"pointers": ["x"]}, "'x' is among its pointers, and is no position of an operand"),
    ({"pointers": [7]}, "7 is among its pointers, and is no position of an operand; there are 1\n  fix: "),
    ({"assuming": "no rain"}, "assumes 'no rain', which is no condition that can be checked\n  fix: "),
    ({"source": b"x"}, r"source is of type bytes, and neither a text nor a file\n  fix: source=the bytes\.decode\(\), or Path"),
    ({"source": None}, "source is of type NoneType, and neither a text nor a file"),
    ({"sources": 3}, r"sources is 3\n  fix: sources="),
    ({"dtypes": "f32"}, r"dtypes is 'f32', and no list of them\n  fix: dtypes=\['f32'\]"),
    ({"dtypes": [3]}, "3 is among its dtypes, a int"), ({"entry": 3, "name": "c.k"}, r"^kernel 'c\.k': entry is 3, of type int\n"),
    ({"entry": None}, r"^kernel 'c\.…': entry is None, of type NoneType\n  fix: entry="),
    ({"updates": "yes"}, "updates is 'yes'\n  fix: updates=True"),
])
def test_other_mistakes_are_named_with_their_fix(options: dict[str, Any], said: str) -> None:
    with pytest.raises((KernelError, ToolchainError), match=said):
        softmax_kernel(**options)


def test_an_argument_that_it_does_not_have_is_named_with_the_one_that_is_meant() -> None:
    with pytest.raises(CallError, match=r"c_kernel\(.*has no argument 'int'\n(.*\n)*  fix: ints=… instead of int=…"):
        softmax_kernel(int=[1])


@pytest.mark.parametrize(("given", "said"), [(3, "what ints returns is 3, which is no"), (["2"], "of what ints returns is '2'")])
def test_numbers_that_its_functions_return_are_looked_at_when_it_is_built(given: Any, said: str) -> None:
    kernel = softmax_kernel(ints=lambda spec: given)
    with pytest.raises(KernelError, match=said):
        kernel.build(Spec.of(tg.softmax(tg.input("x", (2, 3)))))


def test_a_dim_that_no_operand_has_is_named_when_the_kernel_is_built() -> None:
    n, other = tg.dim("n", 1, 9), tg.dim("other", 1, 9)
    kernel, spec = softmax_kernel(ints=[n, other]), Spec.of(tg.softmax(tg.input("x", (n, 3))))
    with pytest.raises(KernelError, match=r"ints has the dim other, and no operand of the call has it\n  fix: ints=lambda spec"):
        kernel.build(spec)


def test_what_a_kernel_assumes_of_values_is_declared_as_for_python() -> None:
    assert softmax_kernel(assuming="no overflow").assuming == ("no overflow",)


def test_a_crash_of_a_kernel_that_is_declared_without_ints_says_so(tmp_path: Path) -> None:
    kernel = softmax_kernel(name="c.without_ints", ints=())
    with open_database(tmp_path / "own.db") as store, Judge(store) as judge:
        hearing = _Dialogue(judge, signature_of(tg.softmax(tg.input("x", (tg.dim("n", 0, 9), 3)))), (), None)
        hearing.at = " at n=0"
        crashed = judge._not_run(kernel, Reply("RUNTIME_ERROR", f"{CRASHED}\nlast words"), hearing)
        assert crashed.log.startswith(f"{CRASHED} at n=0\nlast words\nit is declared without ints=")
        assert "\n  fix: ints=" in crashed.log
        other = judge._not_run(softmax_kernel(), Reply("RUNTIME_ERROR", CRASHED), hearing)
        assert other.log == f"{CRASHED} at n=0"


def test_more_arguments_than_a_call_can_have_are_refused() -> None:
    kernel = softmax_kernel(ints=lambda spec: range(library.MAX_INT + 1))
    with pytest.raises(KernelError, match=r"^kernel 'c\.my_softmax' is to be called with 33 ints; there are 32 at most$"):
        kernel.build(Spec.of(tg.softmax(tg.input("x", (2, 3)))))


def test_what_it_does_not_accept_is_said() -> None:
    kernel = softmax_kernel(accepts=lambda spec: None if spec.attrs["axis"] == -1 else "the last axis only")
    assert kernel.accepts(Spec.of(tg.softmax(tg.input("x", (2, 3))))) is None
    assert kernel.accepts(Spec.of(tg.softmax(tg.input("x", (2, 3)), axis=0))) == "the last axis only"
    assert kernel.accepts(Spec.of(tg.softmax(tg.input("x", (2, 3), tg.f64)))) == "f64 is not among f32"


def test_where_the_device_lacks_what_it_requires_it_is_not_compiled_and_no_candidate(caplog: pytest.LogCaptureFixture) -> None:
    node = tg.softmax(tg.input("x", (N, 16)))
    spec = signature_of(node).spec
    with caplog.at_level(logging.WARNING):
        kernel = tg.c_kernel("softmax", entry="far", source="no C at all\n", dtypes=["f32"], requirements={"arch": ["sm_90"]})
    why = "it needs sm_90, which this device (cpu) has not"
    assert [r.getMessage() for r in caplog.records] == [f"kernel c.far is no candidate: {why}"]
    table = registry.by_op(registry.all_kernels(("c",)))
    assert kernel not in registry.matching(spec, table) and (kernel, why) in registry.left_out(spec, table)
    with pytest.raises(ToolchainError, match=r"kernel 'c\.near'"):
        tg.c_kernel("softmax", entry="near", source="no C at all\n", dtypes=["f32"], requirements={"arch": [platform.machine()]})


def test_a_requirement_that_nothing_can_check_is_refused_as_that_of_a_kernel_in_python() -> None:
    with pytest.raises(KernelError, match=r"the requirements of kernel 'c\.far' name 'archs', which nothing here can check\n"
                                          r"  fix: did you mean arch\?"):
        tg.c_kernel("softmax", entry="far", source=POOL, dtypes=["f32"], requirements={"archs": ["avx2"]})
    assert "c.far" not in {k.name for k in registry.all_kernels(("c",))}


def test_without_a_compiler_it_says_so_and_is_no_candidate(monkeypatch: pytest.MonkeyPatch,
                                                           caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(c_backend, "available", lambda: "no C compiler: install gcc")
    registry.reset("c")
    try:
        kernel = softmax_kernel()
        assert "kernel c.my_softmax is no candidate: no C compiler: install gcc" in caplog.text
        assert caplog.records[-1].levelno == logging.WARNING
        assert kernel.accepts(Spec.of(tg.softmax(tg.input("x", (2, 3))))) == "no C compiler: install gcc"
        assert kernel not in registry.all_kernels(("c", "numpy"))
    finally:
        monkeypatch.undo()
        registry.reset("c")
    assert kernel in registry.all_kernels(("c", "numpy"))


# ---- what the documents show -----------------------------------------------------------------------------------------


def test_the_example_of_the_documents_runs_and_each_of_its_kernels_is_right(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "backends.md").read_text(encoding="utf-8").partition("## A C kernel of your own")[2]
    (text,) = re.findall(r"```python\n(.*?)```", page.partition("\n## ")[0], re.DOTALL)
    (tmp_path / "my_kernels.py").write_text(text.replace("budget=30", "budget=1"))
    own = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_DATA_HOME": str(tmp_path / "data")}
    done = subprocess.run([sys.executable, "my_kernels.py"], cwd=tmp_path, env=own, capture_output=True, text=True, timeout=300,
                          check=False)
    assert done.returncode == 0, done.stderr
    assert "softmax f32[1024, 640]" in done.stdout and "refused" not in done.stdout
    monkeypatch.syspath_prepend(tmp_path)
    module: Any = importlib.import_module("my_kernels")
    try:
        x = tg.input("x", (N, 24))
        sum_of_product = module.multiply_add(x, tg.input("y", x.shape), tg.input("z", x.shape))
        nodes = {"row_softmax": tg.softmax(x), "fused_multiply_add": sum_of_product}
        with open_database(tmp_path / "own.db") as store, Judge(store) as judge:
            for name, node in nodes.items():
                for kernel in map(registry.kernel_named, (f"c.{name}", f"c.{name}_pool")):
                    assert registry.matching(Spec.of(node), {kernel.op: [kernel]}) == [kernel]
                    verdict = judge.examine(kernel, signature_of(node), {"n": 700})
                    assert verdict.status == "PASSED", verdict.log
    finally:
        del sys.modules["my_kernels"]


def test_every_name_that_the_documents_give_for_a_header_is_in_it() -> None:
    page = (ROOT / "docs" / "backends.md").read_text(encoding="utf-8")
    rows = re.findall(r'^\| `"(\w+\.h)"` \| (.*) \|$', page, re.MULTILINE)
    assert [name for name, _ in rows] == ["tg.h", "loops.h", "vec.h"]
    for name, listed in rows:
        text = (library.FOLDER / name).read_text()
        assert not [word for word in re.findall(r"`(\w+)", listed) if not re.search(rf"\b{word}\b", text)], name
