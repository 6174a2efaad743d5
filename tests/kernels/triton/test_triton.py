"""kernels/triton: what its kernels take, which tiles they choose, what is said where it cannot run; on a GPU, beside the oracle."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.kernels import registry
from tensor_graphs.kernels.kernel import HostCall, KernelError, Spec
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.kernels.torch import backend_cuda
from tensor_graphs.kernels.triton import attention, backend, products, rows
from tensor_graphs.kernels.triton.products import Machine
from tensor_graphs.language import dims as d
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.node import Node
from tensor_graphs.measure.judge import Judge
from tensor_graphs.records.database import open_database
from tests.cli.command import document
from tests.cli.command import tg as command
from tests.plans import check

ROOT = Path(__file__).parents[3]
N = tg.dim("n", 0, 2048)
P = tg.dim("p", 0, 2048)

absent = pytest.mark.skipif(registry.why_missing("triton") is None, reason="of a machine without Triton or a GPU")


def given(name: str, *shape: Any, dtype: DType = tg.bf16) -> Node:
    return tg.input(name, shape, dtype)


def attending(width: int = 64, heads: int = 4, of_keys: int = 2, dtype: DType = tg.bf16, values: int | None = None,
              **how: Any) -> Node:
    q, k = given("q", N, heads, width, dtype=dtype), given("k", N + P, of_keys, width, dtype=dtype)
    v = given("v", N + P, of_keys, values or width, dtype=dtype)
    return tg.attention(q, k, v, **{"scale": 0.125, "causal": True, "start": P, **how})


# ---- what is taken -----------------------------------------------------------------------------------------------------

TAKEN: list[tuple[str, Callable[[], Node]]] = [
    ("softmax", lambda: tg.softmax(given("x", N, 96))), ("softmax", lambda: tg.softmax(given("x", N, P, 3, dtype=tg.f32), axis=0)),
    ("rms_norm", lambda: tg.rms_norm(given("x", N, 96), given("w", 96, dtype=tg.f32), offset=1.0)),
    ("layer_norm", lambda: tg.layer_norm(given("x", N, P, dtype=tg.f16))),
    ("linear", lambda: tg.linear(given("x", N, P, 96), given("w", 40, 96), given("b", 40, dtype=tg.f32))),
    ("dot", lambda: tg.dot(given("a", N, 4, 96, dtype=tg.f16), given("b", 96, P, dtype=tg.f16))),
    ("attention", attending), ("attention", lambda: attending(72, 6, 2, tg.f16, 40, window=100, softcap=30.0))]


@pytest.mark.parametrize(("op", "made"), TAKEN, ids=[f"{op}{i}" for i, (op, _) in enumerate(TAKEN)])
def test_what_a_kernel_takes(op: str, made: Callable[[], Node]) -> None:
    assert backend.TABLE[op][2](Spec.of(made())) is None


@pytest.mark.parametrize(("op", "made", "why"), [
    ("softmax", lambda: tg.softmax(given("x", N, 96, dtype=tg.f64)), "f32, bf16 and f16 only"),
    ("rms_norm", lambda: tg.rms_norm(given("x", N, 96), given("w", 96, dtype=tg.f64)), "f32, bf16 and f16 only"),
    ("layer_norm", lambda: tg.layer_norm(given("x", N, 96, dtype=tg.f8e4m3)), "f32, bf16 and f16 only"),
    ("linear", lambda: tg.linear(given("x", N, 96, dtype=tg.f32), given("w", 40, 96)), "bf16 or f16, both operands of one type"),
    ("linear", lambda: tg.linear(given("x", N, 96), given("w", 40, 96, dtype=tg.f16)), "bf16 or f16, both operands of one type"),
    ("linear", lambda: tg.linear(given("x", N, 9), given("w", 40, 9), given("b", 40, dtype=tg.f64)), "a bias of f32, bf16 or f16"),
    ("dot", lambda: tg.dot(given("a", N, 9, dtype=tg.i32), given("b", 9, dtype=tg.i32)), "bf16 or f16, both operands of one type"),
    ("dot", lambda: tg.dot(given("a", 2, 96), given("b", 96, tg.dim("m", 0, 1 << 31))), "an axis has too many elements"),
    ("attention", lambda: tg.attention(given("q", N, 2, 64), given("k", N, 2, 64), given("v", N, 2, 64),
                                       given("m", N, N, dtype=tg.bool_), scale=1.0), "no mask"),
    ("attention", lambda: attending(dtype=tg.f32), "bf16 or f16, one type for all"),
    ("attention", lambda: attending(264), "heads of a known length, up to 256"),
    ("attention", lambda: attending(values=300), "heads of a known length, up to 256")], ids=lambda value: "")
def test_what_a_kernel_refuses_is_said(op: str, made: Callable[[], Node], why: str) -> None:
    assert backend.TABLE[op][2](Spec.of(made())) == why


# ---- tiles -------------------------------------------------------------------------------------------------------------


def test_a_tile_is_chosen_by_the_shape_and_all_of_k_is_in_a_part() -> None:
    assert products.tile_for(4096, 4096, 4096, 1, 132) == products.TILES[0]
    few = products.tile_for(16, 4096, 14336, 1, 132)
    assert few.tall == 16 and few.parts > 1
    rng = np.random.default_rng(0)
    for _ in range(2000):
        n, m, k = (int(2 ** rng.uniform(0, 15)) for _ in range(3))
        batches, processors = int(rng.integers(1, 9)), int(rng.choice([20, 84, 108, 132, 148]))
        found = products.tile_for(n, m, k, batches, processors)
        each = -(-k // (found.parts * found.deep)) * found.deep
        assert 1 <= found.parts <= products.MOST_PARTS and (found.parts - 1) * each < k <= found.parts * each
        for shared in (99 << 10, 163 << 10, Machine().shared):
            assert (found.tall + found.wide) * found.deep * 2 * found.stages(shared) <= shared


@pytest.mark.parametrize("shared", [99 << 10, 163 << 10, Machine().shared])
@pytest.mark.parametrize("length", [16, 64, 128, 256])
def test_tiles_of_attention_fit_into_shared_memory(length: int, shared: int) -> None:
    for queries in (1, 17, 100, 5000):
        tall, step, warps, stages = attention.tile_for(queries, length, length, shared)
        assert 2 * length * (tall + 2 * step * stages) <= shared and 1 <= stages <= 3 and warps in (4, 8)
    assert attention.tile_for(5000, 128, 128, Machine().shared) == (128, 128, 8, 3)


@pytest.mark.parametrize("n", [1, 7, 16, 100, 1024, 4096, rows.LONGEST])
def test_a_block_has_whole_rows_and_as_many_threads_as_they_need(n: int) -> None:
    together, block, warps = rows.block_of(n)
    assert n <= block < max(32, 2 * n) and block & (block - 1) == 0 == warps & (warps - 1)
    assert together == 1 or together * block <= rows.TOGETHER
    assert together * block <= 32 * 32 * warps


# ---- where it cannot run -----------------------------------------------------------------------------------------------


@absent
def test_what_is_missing_is_said_at_once_and_nothing_is_imported_for_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    version, there = importlib.metadata.version, [False]

    def found(name: str) -> str:
        if name == "triton" and not there[0]:
            raise importlib.metadata.PackageNotFoundError(name)
        return "3.6.0" if name == "triton" else version(name)

    monkeypatch.setattr(importlib.metadata, "version", found)
    monkeypatch.setattr(backend_cuda, "available", lambda: None)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CPATH", raising=False)
    assert backend.available() == backend.NOT_INSTALLED
    there[0] = True
    monkeypatch.setattr(backend.shutil, "which", lambda name: None)  # type: ignore[attr-defined]
    assert backend.available() == backend.NO_COMPILER
    monkeypatch.setattr(backend.shutil, "which", lambda name: f"/usr/bin/{name}")  # type: ignore[attr-defined]
    monkeypatch.setattr(backend.sysconfig, "get_path", lambda *a: str(tmp_path))  # type: ignore[attr-defined]
    assert backend.available() == (f"triton builds what launches its kernels with {tmp_path / 'Python.h'}, and it is not there "
                                   "(install Python's headers)")
    (tmp_path / "Python.h").touch()
    assert backend.available() is None and "triton" not in sys.modules
    monkeypatch.setattr(backend_cuda, "available", lambda: backend_cuda.HAS_NONE)
    there[0] = False
    assert backend.available() == f"{backend_cuda.HAS_NONE}; {backend.NOT_INSTALLED}"


@absent
def test_a_kernel_of_ones_own_is_not_measured_where_it_is_missing(tmp_path: Path) -> None:
    def my_softmax(outs: Any, ins: Any, attrs: Any) -> None:
        raise AssertionError("nothing runs it here")

    kernel = tg.kernel("softmax", backend="triton")(my_softmax)
    try:
        graph = tg.graph(tg.softmax(tg.input("x", (4, 8))))
        with pytest.raises(KernelError, match="my_softmax cannot be measured here: the backend triton is .*not installed"):
            tg.profile(graph, kernels=kernel.name, database=str(tmp_path / "own.db"))
    finally:
        registry.unregister(kernel.name)


@absent
def test_the_list_of_devices_says_why_it_is_missing(tmp_path: Path) -> None:
    listed = document(command("devices", "--json", "--db", tmp_path / "own.db"))["backends"]
    (row,) = (each for each in listed if each["backend"] == "triton")
    assert row["available"] is False and row["why_not"] == registry.why_missing("triton")


# ---- what a kernel is --------------------------------------------------------------------------------------------------


def test_its_identity_covers_the_programs_and_the_version_of_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "versions", lambda: {"triton": "3.6.0", "torch": "2.11"})
    made = backend.kernels()
    assert {k.name.partition(".")[2] for k in made} == set(backend.TABLE) and len({k.identity for k in made}) == len(made)
    for kernel in made:
        assert {"jit_functions.py", f"{kernel.build.args[0].__module__.rpartition('.')[2]}.py"} <= {  # type: ignore[attr-defined]
            Path(f.path).name for f in kernel.code.files if Path(f.path).parent.name == "triton"}
        assert kernel.build(Spec.of(tg.softmax(given("x", 3, 4)))).on_stream  # type: ignore[union-attr]
    monkeypatch.setattr(backend, "versions", lambda: {"triton": "3.7.0", "torch": "2.11"})
    assert not {k.identity for k in made} & {k.identity for k in backend.kernels()}


def test_what_is_registered_for_it_may_be_captured_and_what_is_for_others_not() -> None:
    def nothing(outs: Any, ins: Any, attrs: Any) -> None:
        """Declared, and not called."""

    spec = Spec.of(tg.silu(given("x", 3)))
    for name, captured in (("triton", True), ("torchcuda", False), ("numpy", False)):
        kernel = tg.kernel("silu", backend=name, name=f"{name}.nothing")(nothing)
        try:
            call = kernel.build(spec)
            assert isinstance(call, HostCall) and call.on_stream is captured and call.run is nothing
        finally:
            registry.unregister(kernel.name)


def test_copies_are_its_own() -> None:
    kernel = backend.copy_kernel()
    assert (kernel.name, kernel.backend) == ("triton.copy", "triton") and kernel.build_copy is backend_cuda.build_copy


# ---- on a GPU ----------------------------------------------------------------------------------------------------------

JUDGED: list[tuple[str, Callable[[], Node]]] = [
    *TAKEN, ("softmax", lambda: tg.softmax(given("x", N, 20000))), ("softmax", lambda: tg.softmax(given("x", 3, N, 50), axis=1)),
    ("rms_norm", lambda: tg.rms_norm(given("x", N, 20000, dtype=tg.f32))),
    ("layer_norm", lambda: tg.layer_norm(given("x", 3, 20000), given("w", 20000), given("b", 20000))),
    ("linear", lambda: tg.linear(given("x", N, 640), given("w", 1000, 640))),
    ("linear", lambda: tg.linear(given("x", 16, 2048, dtype=tg.f16), given("w", 512, 2048, dtype=tg.f16), given("b", 512))),
    ("linear", lambda: tg.linear(given("x", N, 77), given("w", 33, 77))),
    ("dot", lambda: tg.dot(given("a", 3, N, 96), given("b", 3, 96, 64))),
    ("dot", lambda: tg.dot(given("a", 2, 1, 5, 7), given("b", 3, 7, N))),
    ("attention", lambda: attending(128, 8, 2)), ("attention", lambda: attending(256, 2, 1, window=64)),
    ("attention", lambda: attending(128, causal=False)), ("attention", lambda: attending(5, 1, 1, values=3, start=-3))]


def judged(tmp_path: Path, kernel: Any, node: Node) -> Any:
    with Judge(open_database(tmp_path / "bench.db"), timeout=180.0) as judge:       # each program is compiled at its first launch
        signature = signature_of(node)
        sizes = dict.fromkeys(signature.dim_names, 100)
        return judge.examine(kernel, signature, sizes, time_at=sizes, budget=0.05)


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "made"), JUDGED, ids=[f"{op}{i}" for i, (op, _) in enumerate(JUDGED)])
def test_a_kernel_is_what_its_definition_says(op: str, made: Callable[[], Node], tmp_path: Path) -> None:
    name = f"triton.{op}" if op != "attention" else "triton.attention_near"
    verdict = judged(tmp_path, registry.kernel_named(name), made())
    assert verdict.status == "PASSED", f"{verdict.status} {verdict.log}"
    assert verdict.samples


def drawn(g: tg.Graph, dims: dict[str, int], seed: int = 0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    shapes = {name: [int(d.evaluate(s, dims)) for s in node.shape] for name, node in g.inputs.items()}
    return {name: draw.standard_normal(shape).astype(g.inputs[name].dtype.numpy) for name, shape in shapes.items()}


@pytest.mark.gpu
def test_a_path_of_its_kernels_is_one_replay_and_gives_the_same_at_other_sizes() -> None:
    x, w = given("x", N, 96), given("w", 96, 96)
    h = tg.linear(tg.rms_norm(x), w)
    g = tg.graph(tg.softmax(tg.layer_norm(h)))
    for sizes in ((64,) * 4, (0, 1, 33, 33, 33, 64)):
        compiled = None
        for n in sizes:
            inputs = drawn(g, {"n": n}, n)
            if compiled is None:
                compiled = check(g, inputs, backends=("triton", "numpy"))
                kernels = [i.kernel for i in compiled.executors[0].program.instructions if i.device == "cuda:0"]
                assert {"triton.rms_norm", "triton.linear", "triton.layer_norm", "triton.softmax"} <= set(kernels)
            expected = tg.interpret(g, inputs).outputs["out"]
            np.testing.assert_allclose(compiled.run(inputs)["out"].astype(float), expected, rtol=0, atol=2e-2)
        assert compiled is not None
        segment = next(s for s in compiled.executors[0].segments if type(s).__name__ == "OnDevice")
        kept = next(f.kept[id(segment)] for frames in compiled._frames for f in frames if id(segment) in f.kept)
        assert [r for r in kept.kept.values() if r is not None], "nothing was captured"


@pytest.fixture
def own() -> Iterator[Any]:
    from tests.choice.part_kernels import registered
    from tests.kernels.triton import own_kernels

    with registered(*own_kernels.MADE):
        yield own_kernels


@pytest.mark.gpu
@pytest.mark.parametrize("precision", [None, "written"])
def test_a_kernel_of_ones_own_passes_and_is_chosen_and_a_wrong_one_is_refused(own: Any, tmp_path: Path, precision: Any) -> None:
    g, sizes = own.gated(), {"n": 4000}
    with open_database(tmp_path / "bench.db") as database:
        report = tg.profile(g, kernels=tuple(k.name for k in own.MADE), backends=("triton", "numpy"), database=database,
                            per_kernel=0.02, timeout=120.0, largest=sizes, precision=precision)
        found = {v.kernel: v.status for v in report.verdicts}
        assert found[own.gate.name] == found[own.gate_that_asks.name] == "PASSED", report
        assert found[own.gate_without_its_end.name] not in ("PASSED", None)
        plan = tg.compile(g, backends=("triton", "numpy"), database=database, largest=sizes, precision=precision)
        assert own.gate_without_its_end.name not in {ins.kernel for v in plan.variants for ins in v.program.instructions}
        inputs = drawn(g, sizes)
        for _ in range(4):
            np.testing.assert_allclose(tg.bind(plan).run(inputs)["out"].astype(float), tg.interpret(g, inputs).outputs["out"],
                                       rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
def test_the_kernel_of_the_page_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "backends.md").read_text(encoding="utf-8")
    text = page.partition("## A Triton kernel of your own")[2].partition("```python\n")[2].partition("```")[0]
    (tmp_path / "triton_of_the_page.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("triton_of_the_page")
    try:
        verdict = judged(tmp_path, module.my_softmax, tg.softmax(given("x", N, 1000)))
        assert verdict.status == "PASSED", f"{verdict.status} {verdict.log}"
    finally:
        registry.unregister(module.my_softmax.name)


@pytest.mark.gpu
def test_attention_at_sizes_around_those_of_tiles_is_torchs() -> None:
    import torch

    device = torch.device("cuda:0")
    torch.manual_seed(0)
    for n, s, width, causal in ((1, 300, 128, True), (127, 127, 128, True), (129, 513, 64, True), (300, 700, 256, False),
                                (64, 65, 72, True)):
        q, k, v = (torch.randn(m, h, width, device=device, dtype=torch.bfloat16) for m, h in ((n, 4), (s, 2), (s, 2)))
        y = torch.empty_like(q)
        attrs = {"scale": width**-0.5, "causal": causal, "window": 0, "start": s - n, "softcap": 0.0}
        attention.attention([y], [q, k, v], attrs)
        seen = torch.ones(n, s, dtype=torch.bool, device=device).tril(s - n) if causal else None
        wanted = torch.nn.functional.scaled_dot_product_attention(
            *(t.double().transpose(0, 1) for t in (q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))), attn_mask=seen,
            scale=width**-0.5).transpose(0, 1)
        torch.testing.assert_close(y.double(), wanted, rtol=0, atol=2e-2)
