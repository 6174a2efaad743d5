"""Arrays on another device than the host: taken where they lie, handed out where the graph says, shared by DLPack."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import tensor_graphs as tg
from tensor_graphs.kernels.kernel import Transfer
from tensor_graphs.language.call_errors import CallError
from tensor_graphs.language.node import Node
from tensor_graphs.runtime import device_array as under
from tensor_graphs.runtime.arrays import device_array
from tensor_graphs.runtime.device_array import DeviceArray
from tensor_graphs.runtime.errors import RunError
from tests.fake.device import Fake
from tests.plans import compiled_of, paths_of, plan_of, poison

N = tg.dim("n", 1, 64)
X, Y = tg.input("x", (N, 8)), tg.input("y", (N, 8))
BACKENDS = ("fake", "numpy")


@pytest.fixture(autouse=True)
def fake() -> Iterator[Fake]:
    from tests.fake import backend

    under._drop_unread()                                            # by a test before
    yield backend.make_known()
    backend.forget()


def there(node: Any) -> Node:
    return tg.copy_to(node, "fake")


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32)


ALL_THERE = tg.graph({"z": there(tg.sin(there(X)) * 2.0)})


def on_fake(graph: Any = ALL_THERE, **options: Any) -> Any:
    made = compiled_of(graph, backends=("fake",), **options)
    poison(made)
    return made


def test_nothing_is_copied_between_devices_where_the_graph_begins_and_ends_there(fake: Fake) -> None:
    made = on_fake()
    assert not [i for i in made.executors[0].program.instructions if isinstance(i.call, Transfer)]
    for n in (3, 5, 3):
        x = device_array(numbers(n, 8), "fake")
        fake.copies.clear()
        z = made.run({"x": x})["z"]
        assert fake.copies == [] and isinstance(z, DeviceArray) and z.device is fake
        np.testing.assert_array_equal(z.numpy(), np.sin(numbers(n, 8)) * np.float32(2))
    assert repr(z) == "<f32[3, 8] on fake>" and (z.ndim, z.size, z.nbytes, z.dtype) == (2, 24, 96, np.dtype(np.float32))


def test_what_the_host_gives_and_wants_is_copied_once_each_way(fake: Fake) -> None:
    made, into = on_fake(), np.zeros((4, 8), np.float32)
    fake.copies.clear()
    assert made.run({"x": numbers(4, 8)}, out={"z": into})["z"] is into
    assert fake.copies == [("up", 128), ("down", 128)]
    np.testing.assert_array_equal(into, np.sin(numbers(4, 8)) * np.float32(2))


def test_an_output_is_written_into_an_array_there(fake: Fake) -> None:
    made, into = on_fake(), device_array(numbers(4, 8, seed=9), "fake")
    fake.copies.clear()
    assert made.run({"x": device_array(numbers(4, 8), "fake")}, out={"z": into})["z"] is into
    assert [way for way, _ in fake.copies] == ["up"]                # the input, before the run
    np.testing.assert_array_equal(into.numpy(), np.sin(numbers(4, 8)) * np.float32(2))


def test_an_input_that_is_written_over_is_copied_first() -> None:
    made = on_fake(tg.graph({"a": there(tg.exp(there(X))), "b": there(tg.sin(there(X)))}))
    x = device_array(numbers(4, 8), "fake")
    out = made.run({"x": x}, out={"a": x})
    np.testing.assert_array_equal(out["b"].numpy(), np.sin(numbers(4, 8)))
    np.testing.assert_array_equal(x.numpy(), np.exp(numbers(4, 8)))
    with pytest.raises(RunError, match=r"out\['a'\] and out\['b'\] share memory|out\['b'\] and out\['a'\] share memory"):
        made.run({"x": numbers(4, 8)}, out={"a": x, "b": x})


def test_an_input_that_is_read_on_both_devices_is_taken_on_the_host(fake: Fake) -> None:
    g = tg.graph({"z": tg.sin(there(X)), "w": tg.exp(X)})
    made = compiled_of(g, backends=BACKENDS)
    assert made.executors[0].input_devices["x"].name == "cpu"
    with pytest.raises(RunError, match=r"input 'x' lies on fake, and the graph reads it on cpu\n  fix: an array on the host, or "
                                       r"a graph that reads it by tg\.copy_to\(…, 'fake'\) alone"):
        made.run({"x": device_array(numbers(2, 8), "fake")})
    with pytest.raises(RunError, match=r"out\['z'\] lies on fake, and the graph hands it out on cpu"):
        made.run({"x": numbers(2, 8)}, out={"z": device_array(numbers(2, 8), "fake")})


def test_a_graph_partly_on_the_host_gives_the_same() -> None:
    """Along whatever path, numpy's kernels between two copies among them."""
    g = tg.graph({"z": there(tg.softmax(there(X)) + tg.sin(there(Y)))})
    given = {"x": numbers(5, 8), "y": numbers(5, 8, seed=1)}
    right = compiled_of(tg.graph({"z": tg.softmax(X) + tg.sin(Y)}), backends=("numpy",)).run(given)["z"]
    crossings = set[int]()
    for number, path in zip(range(12), paths_of(g, BACKENDS), strict=False):
        made = tg.bind(plan_of(g, BACKENDS, path=path))
        moved = sum(isinstance(i.call, Transfer) for i in made.executors[0].program.instructions)
        crossings.add(moved)
        assert bool(path.copies) == bool(moved), "what is priced is what is done"
        for each in (given, {n: device_array(a, "fake") for n, a in given.items()}):
            np.testing.assert_allclose(made.run(each)["z"].numpy(), right, rtol=1e-6, err_msg=f"path {number}")
    assert 0 in crossings and len(crossings) > 1


def test_misfits_are_named_with_what_to_do() -> None:
    made = on_fake()
    for array, said in ((device_array(np.zeros((2, 8), np.int32), "fake"), r"is f32\[n, 8\], the array on fake holds i32"),
                        (device_array(np.zeros(8, np.float32), "fake"), r"the array has shape \(8,\): 1 axes instead of 2"),
                        (device_array(np.zeros((2, 7), np.float32), "fake"), "axis 1 must be 8")):
        with pytest.raises(RunError, match=said):
            made.run({"x": array})
    with pytest.raises(RunError, match=r"out\['z'\] must be f32\[2, 8\], and is f32\[3, 8\] on fake"):
        made.run({"x": numbers(2, 8)}, out={"z": device_array(numbers(3, 8), "fake")})
    with pytest.raises(RunError, match="parameter 'w' lies on fake, and is read on the host"):
        tg.bind(tg.compile(tg.graph(X * tg.parameter("w", (8,)))), {"w": device_array(numbers(8), "fake")})
    with pytest.raises(RunError, match="holds complex64, a dtype that graphs do not have"):
        device_array(np.zeros(3, np.complex64), "fake")
    with pytest.raises(RunError, match="cpu is the host, whose arrays are numpy's"):
        device_array(numbers(3), "cpu")
    with pytest.raises(tg.TensorGraphsError, match="no device is named 'fale'"):
        device_array(numbers(3), "fale")


def test_a_prepared_run_reads_and_writes_there(fake: Fake) -> None:
    made, x, into = on_fake(), numbers(4, 8), device_array(numbers(4, 8), "fake")
    ready = made.prepared({"x": x}, out={"z": into})
    for seed in range(3):
        x[...] = numbers(4, 8, seed=seed)                           # of the host: copied there at each run
        assert ready.run()["z"] is into
        np.testing.assert_array_equal(into.numpy(), np.sin(x) * np.float32(2))
    there_x = device_array(x, "fake")
    ready = made.prepared({"x": there_x})
    fake.copies.clear()
    assert isinstance(ready.run()["z"], DeviceArray) and fake.copies == []


def test_results_are_let_go_when_their_caller_lets_go(fake: Fake) -> None:
    made, x = on_fake(), device_array(numbers(64, 8), "fake")
    made.run({"x": x})
    held = fake.allocated
    for _ in range(3):
        made.run({"x": x})
    assert fake.allocated == held
    z = made.run({"x": x})["z"]
    assert fake.allocated == held + 64 * 8 * 4
    del z
    assert fake.allocated == held


def test_outputs_that_are_used_again_stay_where_they_are() -> None:
    made = tg.bind(tg.compile(ALL_THERE, backends=("fake",), reuse_outputs=True))
    first = made.run({"x": numbers(4, 8)})["z"]
    assert made.run({"x": numbers(4, 8, seed=2)})["z"] is first
    np.testing.assert_array_equal(first.numpy(), np.sin(numbers(4, 8, seed=2)) * np.float32(2))


def test_rows_of_a_state_that_an_input_names_are_looked_at_there_too() -> None:
    s, at = tg.state("s", (4, 8)), tg.input("at", (1,), tg.i32)
    new = s.write(tg.constant(np.ones((1, 8), np.float32)), at=there(at))
    made = compiled_of(tg.graph({"y": there(new)}, {s: new}), backends=BACKENDS)
    session = made.session()
    made.run({"at": device_array(np.array([2], np.int32), "fake")}, session=session)
    assert session["s"][2].tolist() == [1.0] * 8 and not session["s"][3].any()
    with pytest.raises(RunError, match="the input 'at' asks for row 4"):
        made.run({"at": device_array(np.array([4], np.int32), "fake")}, session=session)


def test_insides_of_a_run_can_be_looked_at() -> None:
    made, given = on_fake(), {"x": device_array(numbers(3, 8), "fake")}
    np.testing.assert_array_equal(made.tap("sin.0", given)["sin.0"], np.sin(numbers(3, 8)))
    assert [label for label, _, _ in made.profile(given)] == ["sin.0", "mul.0"]
    assert made.first_nan({"x": device_array(np.full((3, 8), np.nan, np.float32), "fake")}) == "input x"
    assert made.time(given, repeats=2) > 0.0


def test_memory_of_inputs_and_outputs_is_planned_where_it_is(fake: Fake) -> None:
    plan = plan_of(ALL_THERE, ("fake",))
    (use,) = plan.memory(n=64).elsewhere
    assert (use.inputs, use.outputs) == (2048, 2048) and plan.memory(n=64).inputs == plan.memory(n=64).outputs == 0
    fake.size = 4000
    with pytest.raises(tg.TensorGraphsError, match="device fake may use 4.0 kB"):
        tg.bind(plan).run({"x": numbers(64, 8)})


# ---- DLPack: what is given is what is taken --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [tg.f32, tg.bf16, tg.f16, tg.f64, tg.i32, tg.u8, tg.bool_, tg.i64])
@pytest.mark.parametrize("shape", [(3, 4), (), (0, 5), (1, 1, 7)])
def test_a_capsule_says_what_the_array_is(fake: Fake, dtype: Any, shape: tuple[int, ...]) -> None:
    array = device_array(np.ones(shape).astype(dtype.numpy), "fake")
    capsule = array.__dlpack__()
    assert array.__dlpack_device__() == (12, 0) and "dltensor" in repr(capsule)
    taken = under._array_of(capsule, fake)
    assert (taken.shape, taken.type, taken.nbytes) == (array.shape, array.type, array.nbytes)
    assert taken.memory.address == (array.memory.address if array.nbytes else 0)
    with pytest.raises(BufferError, match="no capsule"):
        under._array_of(capsule, fake)                                 # it has a reader


def test_memory_is_kept_while_a_reader_has_it_and_no_longer(fake: Fake) -> None:
    before = fake.allocated, len(under._lent)
    array = device_array(numbers(16, 16), "fake")
    taken = under._array_of(array.__dlpack__(), fake)
    del array
    gc.collect()
    assert fake.allocated == before[0] + 1024
    del taken
    gc.collect()
    assert (fake.allocated, len(under._lent)) == before
    array = device_array(numbers(16, 16), "fake")
    capsule = array.__dlpack__()
    del array, capsule                                              # nobody has read it
    under._drop_unread()
    assert (fake.allocated, len(under._lent)) == before


def test_a_capsule_that_is_no_such_array_is_refused() -> None:
    host = under.device_named("cpu")
    with pytest.raises(BufferError, match=r"do not lie one after the other \(strides \[1, 3\]\)"):
        under._array_of(torch.zeros(2, 3).T.__dlpack__(), host)
    with pytest.raises(BufferError, match="no dtype of 64 bits of DLPack's kind 5"):
        under._array_of(torch.zeros(2, dtype=torch.complex64).__dlpack__(), host)
    taken = under._array_of(torch.arange(6, dtype=torch.int32).reshape(2, 3).__dlpack__(), host)
    assert taken.shape == (2, 3) and taken.type is tg.i32


def test_an_array_there_is_read_on_the_host_by_a_copy_only(fake: Fake) -> None:
    array = device_array(numbers(3, 4), "fake")
    assert np.array_equal(np.asarray(array), numbers(3, 4)) and np.asarray(array, np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(array, copy=False)
    with pytest.raises(BufferError, match="cannot be given as one of DLPack's device"):
        array.__dlpack__(dl_device=(1, 0))
    again = device_array(array, "fake")
    assert again is array and array.copy().memory.address != array.memory.address
    fake.dlpack = None  # type: ignore[assignment]
    with pytest.raises(BufferError, match="shared with no other library"):
        array.__dlpack__()


# ---- beside torch and CuPy on a GPU ----------------------------------------------------------------------------------

ON_GPU = ("cuda", "gencuda", "torchcuda")


def on_gpu(node: Any) -> Node:
    return tg.copy_to(node, "cuda:0")


def softmax_on_gpu(dtype: Any) -> Any:
    x = tg.input("x", (N, 96), dtype)
    return compiled_of(tg.graph({"y": on_gpu(tg.softmax(on_gpu(x)))}), backends=ON_GPU)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [tg.f32, tg.bf16, tg.f16])
def test_tensors_of_torch_are_read_and_written_where_they_lie(dtype: Any) -> None:
    made, kind = softmax_on_gpu(dtype), {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[dtype.name]
    assert not [i for i in made.executors[0].program.instructions if isinstance(i.call, Transfer)]
    for n in (5, 64, 5, 5):
        x = torch.randn(n, 96, device="cuda").to(kind)
        kept = x.clone()
        y = made.run({"x": x})["y"]
        seen = torch.from_dlpack(y)
        assert seen.data_ptr() == y.memory.address and seen.dtype is kind
        right = x.double().softmax(-1)
        assert float((seen.double() - right).abs().max()) <= {"f32": 1e-6, "bf16": 4e-3, "f16": 5e-4}[dtype.name]
        into = torch.empty_like(x)
        made.run({"x": x}, out={"y": into})
        assert torch.equal(into, seen) and torch.equal(x, kept)
        given = under.shared(x)
        assert given.memory.address == x.data_ptr() and given.shape == (n, 96)
    with pytest.raises(RunError, match="do not lie one after the other"):
        made.run({"x": torch.randn(96, 5, device="cuda").to(kind).T})
    with pytest.raises(RunError, match=r"fix: \.detach\(\)"):
        made.run({"x": torch.randn(5, 96, device="cuda").to(kind).requires_grad_()})


@pytest.mark.gpu
def test_a_reader_on_a_stream_of_its_own_waits_and_so_do_we_for_a_giver() -> None:
    x = tg.input("x", (4096, 1024))
    made = compiled_of(tg.graph({"y": on_gpu(tg.tanh(on_gpu(x)))}), backends=ON_GPU)
    for _ in range(20):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            t = torch.zeros(4096, 1024, device="cuda")
            torch.cuda._sleep(2_000_000)                            # a ms, in which the numbers are not there
            t += 0.5
            y = torch.from_dlpack(made.run({"x": t})["y"])
            worst = (y - t.tanh()).abs().max()
        stream.synchronize()
        assert float(worst) <= 1e-6


@pytest.mark.gpu
def test_a_loop_that_keeps_its_last_result_is_replayed() -> None:
    x = tg.input("x", (256, 64))
    y = on_gpu(x)
    for _ in range(4):
        y = tg.softmax(tg.cumsum(y, -1), -1)
    made = compiled_of(tg.graph({"y": on_gpu(y)}), backends=ON_GPU)
    t = torch.randn(256, 64, device="cuda")
    out = None
    for _ in range(12):
        out = made.run({"x": t})
    kept = [r for frames in made._frames for f in frames for each in f.kept.values()
            if (r := getattr(each, "replays", each)) is not None]
    assert out is not None and sum(len(r.kept) for r in kept if hasattr(r, "kept")) in (1, 2)


@pytest.mark.gpu
def test_arrays_of_cupy_are_shared_too() -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is no requirement of this project; torch's tensors take the same way above")
    made = softmax_on_gpu(tg.f32)
    x = cupy.random.standard_normal((7, 96)).astype(cupy.float32)
    y = cupy.from_dlpack(made.run({"x": x})["y"])
    e = cupy.exp(x - x.max(-1, keepdims=True))
    assert float(abs(y - e / e.sum(-1, keepdims=True)).max()) <= 1e-6


@pytest.mark.gpu
def test_memory_of_torch_comes_back_when_a_run_is_over() -> None:
    made = softmax_on_gpu(tg.f32)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        made.run({"x": torch.randn(64, 96, device="cuda")})
    gc.collect()
    assert torch.cuda.memory_allocated() == before


def test_what_is_put_on_a_device_is_what_was_given() -> None:
    assert device_array(np.float32(3), "fake").shape == () and device_array(2.5, "fake").numpy() == 2.5
    assert device_array([[1, 2], [3, 4]], "fake").numpy().tolist() == [[1, 2], [3, 4]]
    narrow = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    assert device_array(narrow, "fake").type is tg.bf16 and device_array(narrow, "fake").numpy().tolist() == [1.5, -2.0]
    across = np.arange(12.0).reshape(3, 4).T
    np.testing.assert_array_equal(device_array(across, "fake").numpy(), across)
    for values, said in ((np.ma.array([1.0], mask=[True]), "masks are not read"), ([[1], [2, 3]], "ragged"), ("abc", "holds str"),
                         (None, "holds object"), (torch.ones(2, requires_grad=True), "requires a gradient")):
        with pytest.raises(RunError, match=said):
            device_array(values, "fake")
    with pytest.raises(CallError, match=r"device_array\(values, device\)"):
        device_array(np.ones(2))  # type: ignore[call-arg]


def test_a_capsule_that_somebody_holds_is_kept_though_others_are_made(fake: Fake) -> None:
    first, second = device_array(numbers(4), "fake"), device_array(numbers(5), "fake")
    capsule = first.__dlpack__()
    second.__dlpack__()
    assert under._array_of(capsule, fake).shape == (4,)


def test_a_reader_that_refuses_an_array_says_so_and_keeps_nothing(fake: Fake) -> None:
    array, before = device_array(numbers(4), "fake"), len(under._lent)
    for _ in range(3):
        with pytest.raises((RuntimeError, BufferError)):
            np.from_dlpack(array)
    under._drop_unread()
    assert len(under._lent) == before


def test_what_is_no_tensor_of_a_graph_is_not_copied() -> None:
    for value in (np.ones(3), [1.0], 3.0, None):
        with pytest.raises(tg.TensorGraphsError, match="is no tensor of a graph"):
            tg.copy_to(value, "fake")  # type: ignore[arg-type]


def test_a_device_that_is_not_there_is_named_before_anything_is_listed_or_measured() -> None:
    g = tg.graph({"y": tg.copy_to(tg.sin(X), "nowhere")})
    for asked in (lambda: next(iter(tg.list_paths(g))), lambda: tg.profile(g, budget=0.1), lambda: tg.compile(g)):
        with pytest.raises(tg.TensorGraphsError, match=r"copy_to\('nowhere'\) at .*no device is named 'nowhere'"):
            asked()
    for name in ("cuda", "cuda:²", "CUDA:0", "cuda:-1"):
        with pytest.raises(tg.TensorGraphsError, match="no device is named"):
            device_array(numbers(3), name)
