"""Products on a GPU by our kernels for tensor cores beside torch (cuBLAS), in one process, in turns.

    python benchmarks/products_cuda.py [--only f32]

Operands rotate through copies that together are larger than the L2 cache; each contender's launches, one for each copy, are one
CUDA graph, whose replays are timed by events in turns with the others' (kernels_cuda.py). Printed: microseconds of each of our
kernels that takes it, Tflop/s of the fastest, torch ÷ it; of f32 torch's own products (float32_matmul_precision "highest") count,
and those that round operands to TF32 ("high") are beside them. Of f8 (f8e4m3, results of bf16) the faster of torch's two counts:
torch._scaled_mm with sums that are added up in f32 and, beside it, with those that stay in tensor cores; neither it nor ours take
rows of which the bytes are no multiple of 16. Errors, the largest of ours, are relative to the root of the mean square of exact
products. Ends with 1 where one of ours is more than twice torch's and beyond one rounding. Needs a GPU of compute capability 9.0,
and torch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tensor_graphs as tg
from benchmarks.kernels_cuda import captured, memory_of_tensor, microseconds
from tensor_graphs.devices.device_registry import device_named
from tensor_graphs.kernels.cuda import matrix_products
from tensor_graphs.kernels.kernel import Spec
from tests.codegen.launched import Launched

SHAPES = [("linear", 4096, 4096, 4096), ("dot", 4096, 4096, 4096), ("linear", 8192, 8192, 4096), ("linear", 2048, 2048, 2048),
          ("linear", 1024, 1024, 1024), ("linear", 512, 2048, 640), ("linear", 512, 640, 2048), ("linear", 128, 2048, 640),
          ("linear", 16, 8192, 2048), ("linear", 64, 4096, 4096), ("linear", 1000, 32000, 640), ("dot", 333, 4096, 1000),
          ("linear", 16, 4096, 14336), ("linear", 32, 4096, 4096), ("linear", 64, 16384, 4096), ("linear", 128, 4096, 4096),
          ("linear", 256, 4096, 4096), ("linear", 256, 640, 2048)]
"""op, rows, columns, k"""

KINDS = {"bf16": (tg.bf16, tg.bf16), "f16": (tg.f16, tg.f16), "f32": (tg.f32, tg.f32), "f32 by bf16": (tg.f32, tg.bf16),
         "f8": (tg.f8e4m3, tg.f8e4m3)}
ROUNDED = {tg.bf16: 4e-3, tg.f16: 5e-4, tg.f32: 1e-6}
PLAIN = {"tiles": (matrix_products.product, matrix_products.product_takes),
         "turned": (matrix_products.turned, partial(matrix_products.turned_takes, matrix_products.product_takes)),
         "skinny": (matrix_products.skinny, matrix_products.skinny_takes)}
EIGHT = {"tiles": (matrix_products.product, matrix_products.scaled_takes),
         "fast": (partial(matrix_products.product, fast=True), matrix_products.scaled_takes),
         "turned": (matrix_products.turned, partial(matrix_products.turned_takes, matrix_products.scaled_takes))}
OURS = ("tiles", "fast", "turned", "skinny")
BYTES, MOST = 200 << 20, 8
"""of all copies, at least; copies, at most"""


def main() -> int:
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(KINDS), help=f"of {', '.join(KINDS)}, with commas between")
    parser.add_argument("--shapes", type=int, default=len(SHAPES), help="the first so many")
    given = parser.parse_args()
    device = device_named("cuda:0")
    device.use()
    print(f"{device.hardware()[0]}; torch {torch.__version__}")
    heads = *OURS, "Tflop/s", "torch", "rounded"
    print(" " * 40 + "".join(f"{name:>9s}" for name in heads) + f"{'torch ÷ ours':>14s}{'error':>10s}{'torch':>10s}")
    dtypes = {tg.bf16: torch.bfloat16, tg.f16: torch.float16, tg.f32: torch.float32, tg.f8e4m3: torch.float8_e4m3fn}
    wrong, one = 0, torch.ones((), device="cuda")
    for kind in given.only.split(","):
        of_x, of_w = KINDS[kind]
        for op, rows, columns, k in SHAPES[:given.shapes]:
            across, eight = op == "dot", of_x is tg.f8e4m3
            if eight:
                op, across = "linear", False
            if (across and of_x is not of_w) or (eight and k % 16):
                continue
            w_shape = (k, columns) if across else (columns, k)
            nodes = tg.input("x", (rows, k), of_x), tg.input("w", w_shape, of_w)
            spec = Spec.of(tg.dot(*nodes) if across else tg.scaled_linear(*nodes) if eight else tg.linear(*nodes))
            of_y = spec.outputs[0].dtype
            nbytes = rows * k * of_x.itemsize + columns * k * of_w.itemsize
            copies = max(2, min(MOST, -(-BYTES // nbytes)))
            drawn = (((rows, k), dtypes[of_x]), (w_shape, dtypes[of_w]))
            sets = [tuple(torch.randn(*shape, device="cuda").to(dtype) for shape, dtype in drawn) for _ in range(copies)]
            outs = [torch.full((rows, columns), float("nan"), device="cuda", dtype=dtypes[of_y]) for _ in sets]
            given_to = [[memory_of_tensor(device, t) for t in s] for s in sets]
            for each in given_to:
                for prepared in () if eight else matrix_products.product_prepares(spec):     # as a weight's is when it is bound
                    outputs = [device.allocate(int(t.nbytes())) for t in prepared.outputs]
                    Launched(device, prepared.call, outputs, [each[i] for i in prepared.operands], {})()
                    each += outputs
            contenders: dict[str, Any] = {}
            x, w = (t.double() for t in sets[0])
            right = x @ (w if across else w.T)
            size, errors, kept = right.square().mean().sqrt(), [], []
            for name, (build, takes) in (EIGHT if eight else PLAIN).items():
                if takes(spec) is not None or (name in ("turned", "skinny") and (across or rows > matrix_products.MOST_TURNED)):
                    continue
                count = None if name != "skinny" else 2              # it has parts of no weight
                launched = [Launched(device, build(spec), [memory_of_tensor(device, o)], s[:count], {})
                            for o, s in zip(outs, given_to, strict=True)]

                def ours(launched: list[Launched] = launched) -> None:
                    for each in launched:
                        each(torch.cuda.current_stream().cuda_stream)

                kept.append(launched)                               # a graph has no hold on their memory
                outs[0].fill_(float("nan"))
                ours()
                torch.cuda.synchronize()
                errors.append(float((outs[0].double() - right).abs().max() / size))
                contenders[name] = captured(torch, ours)

            def theirs(sets: list[Any] = sets, across: bool = across) -> list[Any]:
                return [x @ (w if across else w.T).to(x.dtype) for x, w in sets]

            def of_eight(fast: bool, sets: list[Any] = sets) -> list[Any]:
                return [torch._scaled_mm(x, w.T, one, one, out_dtype=torch.bfloat16, use_fast_accum=fast) for x, w in sets]

            def with_precision(name: str, run: Callable[[], Any]) -> Any:
                torch.set_float32_matmul_precision(name)
                run()
                graph = captured(torch, run)
                torch.set_float32_matmul_precision("highest")
                return graph

            run, rounded = (partial(of_eight, False), partial(of_eight, True)) if eight else (theirs, theirs)
            of_torch = float((rounded()[0].double() - right).abs().max() / size)
            bad = not max(errors) <= max(2 * of_torch, ROUNDED[of_y]) or any(e != e for e in errors)
            wrong += bad
            contenders["torch"] = with_precision("highest", run)
            if of_x is tg.f32 or eight:
                contenders["rounded"] = with_precision("high", rounded)
            times = microseconds(torch, contenders, len(sets))
            best, torchs = min(times[n] for n in OURS if n in times), times["torch"]
            torchs = min(torchs, times["rounded"]) if eight else torchs
            each = "".join(f"{times[n]:9.1f}" if n in times else f"{'':9s}" for n in OURS)
            rate, what = 2e-6 * rows * columns * k / best, f"{rows}, {columns}, {k}"
            print(f"{kind:12s}{op:7s}{what:21s}{each}{rate:9.0f}{times['torch']:9.1f}{times.get('rounded', 0):9.1f}"
                  f"{torchs / best:14.2f}{max(errors):10.1e}{of_torch:10.1e}{'  WRONG' * bad}", flush=True)
            del sets, outs, contenders, kept, x, w, right
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
