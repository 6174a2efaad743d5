"""kernels/registry.py, kernel.py, signature.py: who is here, who is missing and why, and which questions are the same question."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.kernels import registry
from tensor_graphs.kernels.c import backend as c_backend
from tensor_graphs.kernels.kernel import ANY_OP, Kernel, KernelError, Spec
from tensor_graphs.kernels.kernel_decorator import host_kernel
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language.atomic import ATOMIC
from tensor_graphs.language.composite import LIBRARY
from tensor_graphs.language.node import Node
from tensor_graphs.language.text import parse_graph, print_graph


@pytest.fixture
def mine() -> Iterator[Kernel]:
    def zero(outs: Any, ins: Any, attrs: Any) -> None:
        outs[0][...] = 0

    made = host_kernel("sin", name="numpy.my_sin")(zero)
    yield made
    registry.unregister("numpy.my_sin")


def test_every_kernel_is_of_a_known_op_and_has_a_name_of_its_own() -> None:
    found = registry.all_kernels(tuple(registry.BACKENDS))
    assert len({k.name for k in found}) == len(found) == len({k.identity for k in found})
    for k in found:
        of_one = (k.op in ATOMIC or k.op in LIBRARY) and k.name.startswith(f"{k.backend}.{k.op}")
        assert (of_one or (k.op == ANY_OP and k.name == "gen.loops")) and k.source


def test_numpy_computes_every_atomic_op() -> None:
    assert {k.op for k in registry.load_backend("numpy")} >= set(ATOMIC)


def test_a_registered_kernel_is_found_until_it_is_taken_back(mine: Kernel) -> None:
    assert mine in registry.all_kernels(("numpy",)) and mine not in registry.all_kernels(("c",))
    assert registry.kernel_named("numpy.my_sin") is mine and repr(mine) == "numpy.my_sin"
    with pytest.raises(KernelError, match=r"^a kernel named 'numpy\.my_sin' is registered already: \S+test_registry\.py:\d+\n"
                                          r"  and once more: \S+test_registry\.py:\d+\n  fix: another name for one of them$"):
        registry.register(mine)
    registry.unregister("numpy.my_sin")
    assert mine not in registry.all_kernels(("numpy",))
    with pytest.raises(KernelError, match=r"^no kernel is named 'mine\.sin' here\n  fix: the module that its Kernel names calls"):
        registry.kernel_named("mine.sin")


def test_a_composite_of_ones_own_has_kernels_wherever_its_definition_is_the_same() -> None:
    def triple(x: Node) -> Node:
        return x * 3.0

    def third(x: Node) -> Node:
        return x * (1 / 3)

    mine, again = tg.composite(triple), tg.composite(triple)
    other = tg.composite(third, name="triple")
    x = tg.input("x", (tg.dim("n", 1, 8), 4))
    kernel = host_kernel(mine, name="numpy.triple")(lambda outs, ins, attrs: np.multiply(ins[0], 3, out=outs[0]))
    try:
        table = registry.by_op(registry.all_kernels(("numpy",)))
        assert [registry.matching(Spec.of(op(x)), table) for op in (mine, again, other)] == [[kernel], [kernel], []]
        read = parse_graph(print_graph(tg.graph(mine(x))))
        (node,) = [n for n in read.nodes if n.op.kind == "composite"]
        assert registry.matching(Spec.of(node), table) == [kernel]
    finally:
        registry.unregister("numpy.triple")


def test_a_kernel_may_not_have_the_name_of_one_of_ours() -> None:
    with pytest.raises(KernelError, match=r"^'numpy\.softmax' is the name of a kernel of ours, so \S+test_registry\.py:\d+ "):
        host_kernel("softmax", name="numpy.softmax")(lambda outs, ins, attrs: None)


@pytest.mark.parametrize(("options", "says"), [
    ({"name": "two words"}, "'two words': that is no name: letters, digits, _ and dots\n  fix: name=\"numpy.two_words\""),
    ({"name": "foo.x"}, "'foo.x': that is no name of the backend 'numpy', on which it runs\n  fix: name=\"numpy.x\""),
    ({"name": "c.k"}, "cannot be named 'c.k': that is no name of the backend 'numpy'"),
    ({"name": ""}, "cannot be named ''"), ({"name": None}, "cannot be named 'numpy.<lambda>'"),
    ({"in_place": ((0, 7),)}, "in_place names operand 7, which sin does not have; it has 1\n  fix: in_place=((0, 0),)"),
    ({"in_place": ((0, -1),)}, "in_place names operand -1, which sin does not have"),
    ({"accepts": lambda spec, n: None}, "accepts is called with 1 argument (spec), and takes (spec, n)\n  fix: accepts="),
    ({"contiguous": "yes"}, "contiguous is 'yes'\n  fix: contiguous=True"),
    ({"backend": "numpyy"}, "is for the backend 'numpyy', and there is none of that name\n  fix: did you mean numpy?"),
    ({"backend": "zzz"}, "'zzz', and there is none of that name\n  fix: one that runs functions of Python (numpy, torch,"),
    ({"backend": "c"}, "the backend 'c' runs none\n  fix: one that does (numpy, torch, torchcuda, triton), or tg.c_kernel("),
    ({"backend": "gen"}, "and the backend 'gen' runs none\n  fix: one that does (numpy, torch, torchcuda, triton)"),
    ({"backend": 3}, "is for the backend 3, which is no name"),
], ids=lambda value: "")
def test_a_declaration_that_cannot_be_meant_is_refused_where_it_is_written(options: dict[str, Any], says: str) -> None:
    with pytest.raises(KernelError, match=re.escape(says)):
        tg.kernel("sin", **{"name": "numpy.declared", **options})(lambda outs, ins, attrs: None)
    assert not any(k.name == "numpy.declared" for k in registry.all_kernels(("numpy",)))


def test_a_name_that_is_no_text_is_refused_before_there_is_a_function() -> None:
    with pytest.raises(KernelError, match=r"^a kernel cannot be named 3: that is of type int, and no text\n  fix: name=\"numpy"):
        tg.kernel("softmax", name=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(("word", "fix"), [("nmae", "name=… instead of nmae=…"), ("dtypes", "its arguments are: op, backend, name"),
                                           ("colour", "its arguments are: op, backend, name")])
def test_a_word_that_tg_kernel_does_not_know_is_told(word: str, fix: str) -> None:
    with pytest.raises(TensorGraphsError, match=rf"(?s)kernel\(op, .* has no argument '{word}'.*fix: {fix}"):
        tg.kernel("sin", **{word: "numpy.q"})  # type: ignore[arg-type]


def test_a_function_of_other_parameters_is_no_kernel() -> None:
    with pytest.raises(KernelError, match=r"the function is called with 3 arguments \(outs, ins, attrs\), and takes \(y, x\)\n"):
        tg.kernel("sin", name="numpy.declared")(lambda y, x: None)


async def a_coroutine(outs, ins, attrs):
    outs[0][...] = ins[0]


def a_generator(outs, ins, attrs):
    outs[0][...] = ins[0]
    yield


@pytest.mark.parametrize("function", [a_coroutine, a_generator])
def test_a_function_that_a_call_does_not_run_is_no_kernel(function: Callable[..., None]) -> None:
    with pytest.raises(KernelError, match="the function is a generator or a coroutine, so that a call of it runs nothing\n  fix: "):
        tg.kernel("sin", name="numpy.declared")(function)


def test_pairs_in_place_are_looked_up_in_the_part_that_a_graph_is() -> None:
    x, y = tg.input("x", (8,)), tg.input("y", (8,))
    with pytest.raises(KernelError, match="in_place names operand 2, which add_relu_\\w+ does not have; it has 2"):
        tg.kernel(tg.graph(tg.relu(x + y)), name="numpy.declared", in_place=((0, 2),))(lambda outs, ins, attrs: None)


def test_a_kernel_of_no_op_is_refused() -> None:
    with pytest.raises(KernelError, match="computes 'sofmax', which is no op\n  fix: did you mean softmax"):
        tg.kernel("sofmax")(lambda outs, ins, attrs: None)
    with pytest.raises(KernelError, match=r"computes 'sine', which is no op"):
        host_kernel("sine")(lambda outs, ins, attrs: None)


def test_a_backend_without_its_compiler_says_so_and_has_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c_backend, "available", lambda: "no compiler")
    registry.reset("c")
    try:
        assert registry.load_backend("c") == [] and registry.why_missing("c") == "no compiler"
        assert [k.name for k in registry.copy_kernels(("c", "numpy"))] == ["numpy.copy"]
    finally:
        monkeypatch.undo()
        registry.reset("c")
    assert registry.why_missing("c") is None and registry.copy_kernels(("c", "numpy"))[0].name == "c.copy"


def test_an_unknown_backend_is_named_with_the_known_ones() -> None:
    with pytest.raises(KernelError, match=r"^no backend is named 'cobol'; known: c, cuda, gen, gencuda, .*\n  fix: one of those"):
        registry.load_backend("cobol")
    with pytest.raises(KernelError, match=r"\n  fix: did you mean numpy\?$"):
        registry.load_backend("nunpy")


BACKEND = """
from tensor_graphs.kernels.kernel import HostCall, Kernel
from tensor_graphs.kernels.registry import register_backend

NAME = "elsewhere"
{}

def kernels():
    return [Kernel(name=f"{{NAME}}.sin", backend=NAME, op="sin", build=lambda spec: HostCall(print), accepts=lambda spec: None,
                   source="sin", module=__name__)]

register_backend(NAME, __name__)
"""
WHOLE = """
def available(): return None
def versions(): return {}
"""


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Imports a backend from elsewhere whose module has this text besides its kernels."""
    monkeypatch.syspath_prepend(tmp_path)

    def imported(text: str) -> ModuleType:
        (tmp_path / "elsewhere_backend.py").write_text(BACKEND.format(text))
        return importlib.import_module("elsewhere_backend")

    yield imported
    registry.unregister_backend("elsewhere")
    sys.modules.pop("elsewhere_backend", None)


@pytest.mark.parametrize("name", ["numpy.not_imported", "nobody", "1st.sin"])
def test_a_kernel_that_nobody_has_imported_is_told_with_what_to_import(name: str) -> None:
    with pytest.raises(KernelError, match=rf"^no kernel is named '{name}' here\n  fix: import the module that defines it first$"):
        registry.kernel_named(name)


def test_a_backend_that_registers_itself_is_a_backend_like_ours(elsewhere: Callable[[str], ModuleType]) -> None:
    assert "elsewhere" not in registry.BACKENDS
    module = elsewhere(WHOLE)
    assert list(registry.BACKENDS)[:8] == ["c", "cuda", "gen", "gencuda", "numpy", "torch", "torchcuda", "triton"]
    assert "elsewhere" in registry.BACKENDS
    assert registry.backend_module("elsewhere") is module and registry.why_missing("elsewhere") is None
    assert registry.kernel_named("elsewhere.sin") in registry.all_kernels(("elsewhere", "numpy"))
    registry.register_backend("elsewhere", module)                  # once more, as itself: nothing new
    registry.unregister_backend("elsewhere")
    assert "elsewhere" not in registry.BACKENDS
    with pytest.raises(KernelError, match=r"^no kernel is named 'elsewhere\.sin' here\n  fix: .*register_backend\('elsewhere', "):
        registry.kernel_named("elsewhere.sin")


def test_names_of_backends_are_python_names_and_taken_once() -> None:
    with pytest.raises(KernelError, match=r"^a backend cannot be named 'my-backend'\n  fix: "):
        registry.register_backend("my-backend", "os")
    with pytest.raises(KernelError, match=r"^the backend 'numpy' is tensor_graphs\.\S*backend already, .* be os\n  fix: "):
        registry.register_backend("numpy", "os")


@pytest.mark.parametrize(("text", "said"), [
    (WHOLE.replace("versions", "version"), "elsewhere_backend is no backend 'elsewhere': it lacks versions()"),
    (WHOLE + "NAME_WAS, NAME = NAME, 'other'\nregister_backend(NAME_WAS, __name__)", "has the NAME 'other'"),
    (WHOLE.replace("return None", "raise OSError('no driver')"), "elsewhere_backend raised OSError: no driver"),
    (WHOLE.replace("return None", "return 'no device'"), "no device")])
def test_what_is_wrong_with_a_backend_is_the_reason_for_its_absence(elsewhere: Callable[[str], ModuleType], text: str,
                                                                    said: str) -> None:
    elsewhere(text)
    reason = registry.why_missing("elsewhere")
    registry.unregister_backend("other")
    assert reason is not None and said in reason and registry.load_backend("elsewhere") == []
    assert registry.load_backend("numpy")


def test_kernels_of_another_name_are_refused(elsewhere: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    module = elsewhere(WHOLE)
    (kernel,) = module.kernels()
    for wrong, said in ((replace(kernel, name="sin"), "is not of the backend 'elsewhere'"),
                        (replace(kernel, backend="numpy"), "is not of the backend 'elsewhere'"),
                        (replace(kernel, op="sine"), "computes 'sine', which is no op")):
        monkeypatch.setattr(module, "kernels", lambda wrong=wrong: [wrong])
        registry.reset("elsewhere")
        assert said in (registry.why_missing("elsewhere") or "")
    monkeypatch.setattr(module, "kernels", lambda: [kernel, kernel])
    registry.reset("elsewhere")
    assert "two kernels of the backend 'elsewhere' are called 'elsewhere.sin'" in (registry.why_missing("elsewhere") or "")


def test_a_namesake_of_a_library_op_matches_no_kernel() -> None:
    @tg.composite
    def silu(x: Node) -> Node:
        return x * 2.0

    node = silu(tg.input("x", (3,)))
    assert registry.matching(Spec.of(node), registry.by_op(registry.all_kernels(("numpy",)))) == []
    assert registry.matching(Spec.of(tg.silu(tg.input("x", (3,)))), registry.by_op(registry.all_kernels(("numpy",))))


def test_a_kernel_from_outside_is_left_out_where_what_it_accepts_raises(mine: Kernel, caplog: pytest.LogCaptureFixture) -> None:
    def accepts(spec: Spec) -> str | None:
        raise LookupError

    spec = Spec.of(tg.sin(tg.input("x", (3,))))
    assert registry.matching(spec, {"sin": [mine]}) == [mine]
    assert registry.matching(spec, {"sin": [replace(mine, accepts=accepts)]}) == []
    assert "raised LookupError" in caplog.text
    with pytest.raises(LookupError):
        registry.matching(spec, {"sin": [replace(mine, accepts=accepts, module="tensor_graphs.kernels.numpy.backend")]})


@pytest.mark.parametrize(("accepts", "why"), [
    (lambda spec: True, "accepts returned True; it returns None where the kernel takes the call"), (lambda spec: "", "returned ''"),
    (lambda spec: spec.attrs["axis"], "raised KeyError: 'axis'; the attributes of mean are axes, keepdims")])
def test_an_answer_that_is_neither_none_nor_a_reason_is_told_as_one(mine: Kernel, accepts: Any, why: str) -> None:
    refused = registry.refused(replace(mine, accepts=accepts), Spec.of(tg.mean(tg.input("x", (3,)))))
    assert refused is not None and why in refused


def test_a_view_runs_no_kernel_so_none_is_declared_for_it() -> None:
    for view in ("reshape", tg.graph(tg.input("x", (2, 3)).T)):
        with pytest.raises(KernelError, match=r"and no kernel runs\n  fix: a kernel of the step that reads it"):
            tg.kernel(view, name="numpy.declared")(lambda outs, ins, attrs: None)


def test_another_source_or_toolchain_is_another_kernel(mine: Kernel) -> None:
    assert len({mine.identity, replace(mine, source="other").identity, replace(mine, toolchain="other").identity}) == 3


N, M = tg.dim("n", 1, 8), tg.dim("m", 1, 8)


def test_equal_applications_ask_one_question_whatever_the_names() -> None:
    a = signature_of(tg.softmax(tg.input("a", (N, 4))))
    assert a == signature_of(tg.softmax(tg.sin(tg.input("b", (N, 4))))) and a is signature_of(tg.softmax(tg.input("c", (N, 4))))
    assert a.key == signature_of(tg.softmax(tg.input("a", (M, 4)))).key
    for other in (tg.softmax(tg.input("a", (N, 5))), tg.softmax(tg.input("a", (N, 4)), axis=0),
                  tg.softmax(tg.input("a", (N, 4), tg.f64)), tg.log_softmax(tg.input("a", (N, 4))),
                  tg.softmax(tg.input("a", (tg.dim("n", 1, 9), 4)))):
        assert signature_of(other).key != a.key


def test_axes_name_the_dims_of_a_signature() -> None:
    s = signature_of(tg.dot(tg.input("a", (N, M)), tg.input("b", (M, 3))))
    assert s.axes({"n": 2, "m": 5, "k": 9}) == {"d0": 2, "d1": 5} and s.binding({"d0": 2, "d1": 5}) == {"n": 2, "m": 5}
    assert s.title() == "dot f32[n, m] f32[m, 3]"


def test_a_spec_knows_its_operands_by_role() -> None:
    x, w, b = tg.input("x", (2, 4)), tg.input("w", (3, 4)), tg.input("b", (3,))
    full, short = Spec.of(tg.linear(x, w, b)), Spec.of(tg.linear(x, w))
    assert full.role_index() == {"x": 0, "weight": 1, "bias": 2} and full.role("bias") == b.type
    assert short.role("bias") is None and Spec.of(tg.sin(x)).role("0") == x.type
    g = full.single_node_graph()
    assert list(g.inputs) == ["x0", "x1", "x2"] and list(g.outputs) == ["y0"]
    assert np.asarray(full.outputs[0].shape).tolist() == [2, 3]
