"""Generated kernels on a GPU beside torch eager and torch.compile: memory-bound graphs of 8192 × 4096, in one process, in turns.

    python benchmarks/kernels_cuda.py [--compile] [--rows 8192] [--columns 4096] [--only softmax,tanh] [--text FOLDER]

Operands rotate through copies that together are far larger than the L2 cache. Each contender's launches, one for each copy, are one
CUDA graph; its replays are timed by events, in turns with the others', and the median of the turns is printed: microseconds, and
the share that the bytes which must move are of what a copy moves in that time, by the copy bandwidth of the same run. Outputs are
compared with torch's in f32. Ends with 1 where they differ. Needs a GPU and torch.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tensor_graphs as tg
from tensor_graphs.codegen.backend_cuda import call_of
from tensor_graphs.devices.device import Memory
from tensor_graphs.devices.device_registry import device_named
from tensor_graphs.language.anonymous_composite import part_between
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.language.node import Node
from tests.codegen.launched import Launched

COPIES = 4
"""sets of operands"""

TURNS = 15

Case = tuple[str, tuple[Node, ...], Callable[..., Any]]


def cases(torch: Any, rows: int, columns: int) -> list[Case]:
    """Name, outputs, the same in torch (of the operands in the graph's order, giving a tuple)."""
    f = torch.nn.functional

    def given(name: str, *shape: int, dtype: Any = tg.bf16) -> Node:
        return tg.input(name, shape, dtype)

    x, r, y = (given(n, rows, columns) for n in "xry")
    g, b = given("g", columns), given("b", columns)
    t = given("t", columns, rows)
    labels = given("labels", rows, dtype=tg.i32)
    heads, width = columns // 128, 128
    q = given("q", rows, heads, width)
    cos, sin = given("cos", rows, width // 2, dtype=tg.f32), given("sin", rows, width // 2, dtype=tg.f32)
    p, m, v = (given(n, rows, columns, dtype=tg.f32) for n in ("p", "m", "v"))
    grad = tg.cast(x, tg.f32)
    m1, v1 = 0.9 * m + 0.1 * grad, 0.999 * v + 0.001 * grad * grad
    adam = (p - 1e-3 * (m1 / 0.1) / (tg.sqrt(v1 / 0.001) + 1e-8), m1, v1)
    wide = tg.cast(x, tg.f32)
    hot = tg.where(tg.equals(tg.reshape(tg.iota(columns, dtype=tg.i32), (1, columns)), tg.reshape(labels, (rows, 1))), wide, 0.0)
    loss = tg.logsumexp(wide) - hot.sum(axis=1)

    def rotate(q: Any, cos: Any, sin: Any) -> Any:
        a, c = q[..., :width // 2], q[..., width // 2:]
        cos, sin = cos[:, None, :], sin[:, None, :]
        return (torch.cat((a * cos - c * sin, c * cos + a * sin), -1).to(q.dtype),)

    def step(p: Any, m: Any, x: Any, v: Any) -> Any:
        grad = x.float()
        m1, v1 = 0.9 * m + 0.1 * grad, 0.999 * v + 0.001 * grad * grad
        return p - 1e-3 * (m1 / 0.1) / ((v1 / 0.001).sqrt() + 1e-8), m1, v1

    def norm(x: Any, r: Any, g: Any) -> Any:
        s = x + r
        return f.rms_norm(s, (columns,), g, 1e-6), s

    return [
        ("copy (x * 1)", (x * 1.0,), lambda x: (x * 1.0,)),
        ("softmax", (tg.softmax(x),), lambda x: (x.softmax(-1),)),
        ("rms_norm + residual", (tg.rms_norm(x + r, g), x + r), norm),
        ("layer_norm", (tg.layer_norm(x, g, b),), lambda x, g, b: (f.layer_norm(x, (columns,), g, b),)),
        ("gelu(tanh) * y", (tg.gelu(x, approximate="tanh") * y,), lambda x, y: (f.gelu(x, approximate="tanh") * y,)),
        ("gelu * y", (tg.gelu(x) * y,), lambda x, y: (f.gelu(x) * y,)),
        ("tanh", (tg.tanh(x),), lambda x: (x.tanh(),)),
        ("column sum", (x.sum(axis=0),), lambda x: (x.sum(0),)),
        ("transpose + add", (tg.permute(x, (1, 0)) + t,), lambda x, t: (x.T + t,)),
        ("rope", (tg.rope(q, cos, sin),), rotate),
        ("cross-entropy", (loss,), lambda x, labels: (f.cross_entropy(x.float(), labels.long(), reduction="none"),)),
        ("Adam", adam, step),
        ("tanh f32", (tg.tanh(tg.cast(p, tg.f32)),), lambda p: (p.tanh(),)),
        ("softmax f32", (tg.softmax(p),), lambda p: (p.softmax(-1),)),
    ]


def captured(torch: Any, run: Callable[[], Any]) -> Any:
    """What launches on torch's current stream, as a graph; it has run before."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def microseconds(torch: Any, contenders: dict[str, Any], copies: int = COPIES) -> dict[str, float]:
    """Of one of the copies that each graph runs."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(TURNS):
        for name, graph in contenders.items():
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            graph.replay()
            first.record()
            graph.replay()
            graph.replay()
            last.record()
            last.synchronize()
            taken[name].append(first.elapsed_time(last) * 1e3 / (2 * copies))
    return {name: statistics.median(times) for name, times in taken.items()}


def operands(torch: Any, inputs: Sequence[Node], rows: int, columns: int) -> list[Any]:
    found = []
    for x in inputs:
        shape = tuple(int(s) for s in x.shape)
        if not x.dtype.is_float:
            found.append(torch.randint(0, columns, shape, dtype=torch.int32, device="cuda"))
        else:
            kind = {"bf16": torch.bfloat16, "f32": torch.float32}[x.dtype.name]
            made = torch.randn(shape, device="cuda", dtype=torch.float32)
            found.append((made.abs() * 0.01 if x.attrs["name"] == "v" else made).to(kind))
    return found


def memory_of_tensor(device: Any, tensor: Any) -> Memory:
    return Memory(device, tensor.data_ptr(), tensor.numel() * tensor.element_size(), tensor)


def main() -> int:
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", action="store_true", help="torch.compile too (10 s for each case)")
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("--only", default="", help="names of cases, with commas between")
    parser.add_argument("--text", type=Path, help="a folder for the generated sources")
    given = parser.parse_args()
    device = device_named("cuda:0")
    device.use()
    nbytes = 1 << 30
    a, b = (torch.empty(nbytes, dtype=torch.uint8, device="cuda") for _ in range(2))
    a.random_(0, 255)
    b.copy_(a)
    copy = 0.0
    for _ in range(10):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        b.copy_(a)
        last.record()
        last.synchronize()
        copy = max(copy, 2 * nbytes / first.elapsed_time(last) * 1e3)
    del a, b
    print(f"{device.hardware()[0]}: copy of 1 GiB {copy / 1e12:.2f} TB/s; torch {torch.__version__}; "
          f"{given.rows} × {given.columns}")
    print(f"{'':22s}{'limit':>7s}{'ours':>8s}{'share':>7s}{'eager':>8s}{'compile':>9s}{'best torch ÷ ours':>20s}")
    wrong = 0
    for name, outputs, same in cases(torch, given.rows, given.columns):
        if given.only and name not in given.only.split(","):
            continue
        g = make_graph({f"y{i}": y for i, y in enumerate(outputs)})
        inputs = list(g.inputs.values())
        call = call_of(part_between(list(outputs), inputs).written)
        if given.text:
            given.text.mkdir(exist_ok=True)
            (given.text / f"{name.replace(' ', '_').replace('*', 'x').replace('(', '').replace(')', '')}.cu").write_text(call.text)
        sets = [operands(torch, inputs, given.rows, given.columns) for _ in range(COPIES)]
        right = [same(*s) for s in sets]
        ours = [[torch.full(o.shape, float("nan"), dtype=o.dtype, device="cuda") for o in out] for out in right]
        launched = [Launched(device, call, [memory_of_tensor(device, t) for t in out], [memory_of_tensor(device, t) for t in s], {})
                    for out, s in zip(ours, sets, strict=True)]
        for each in launched:
            each()
        torch.cuda.synchronize()
        wide = [t.float() if t.dtype.is_floating_point else t for t in sets[0]]
        reference = same(*wide)
        errors = []
        for out, ref in zip(ours[0], reference, strict=True):
            ref = ref.double()
            errors.append(float((out.double() - ref).norm() / ref.norm().clamp_min(1e-30)))
        limit = {torch.bfloat16: 4e-3, torch.float32: 2e-6}
        bad = [e for e, out in zip(errors, ours[0], strict=True) if not e <= limit[out.dtype]]
        wrong += bool(bad)

        def all_ours(launched: list[Launched] = launched) -> None:
            for each in launched:
                each(torch.cuda.current_stream().cuda_stream)

        def eager(same: Callable[..., Any] = same, sets: list[Any] = sets) -> None:
            for s in sets:
                same(*s)

        contenders = {"ours": captured(torch, all_ours), "eager": captured(torch, eager)}
        if given.compile:
            torch._dynamo.reset()
            fast = torch.compile(same, mode="max-autotune-no-cudagraphs")
            for s in sets:
                fast(*s)

            def compiled(fast: Any = fast, sets: list[Any] = sets) -> None:
                for s in sets:
                    fast(*s)

            contenders["compile"] = captured(torch, compiled)
        times = microseconds(torch, contenders)
        moved = sum(t.numel() * t.element_size() for t in (*sets[0], *ours[0]))
        floor = moved / copy * 1e6
        best = min(v for k, v in times.items() if k != "ours")
        shown = f"{times['compile']:9.1f}" if given.compile else f"{'':9s}"
        print(f"{name:22s}{floor:7.1f}{times['ours']:8.1f}{floor / times['ours']:7.0%}{times['eager']:8.1f}{shown}"
              f"{best / times['ours']:20.2f}   errors {' '.join(f'{e:.1e}' for e in errors)}{' WRONG' if bad else ''}", flush=True)
        del contenders, launched, sets, ours, right, reference, wide
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
