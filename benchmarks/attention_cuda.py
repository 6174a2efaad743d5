"""Attention on a GPU by our kernels beside torch's scaled_dot_product_attention, in one process, in turns.

    python benchmarks/attention_cuda.py [--only 128] [--longest 16384]

Many queries: causal, all, in a window, with grouped heads, heads of 64, 128 and 256; each of torch's backends that takes a shape is
a contender (flash, cuDNN, memory-efficient), and the best counts. Windows are said to torch by a mask, which flash does not take.
One query: keys and values of 4k to 128k positions, and the share that reading them has of what a copy moves in that time. Operands
rotate through copies that together are larger than the L2 cache; a contender's launches are a CUDA graph (kernels_cuda.py). Errors
are relative to the root of the mean square of the same in f32, of the first and the last head. Ends with 1 where one of ours is
beyond twice torch's and two roundings. Needs a GPU of compute capability 9.0, and torch.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tensor_graphs as tg
from benchmarks.decode_cuda import copy_bandwidth
from benchmarks.kernels_cuda import captured, memory_of_tensor, microseconds
from tensor_graphs.devices.device_registry import device_named
from tensor_graphs.kernels.cuda import attention
from tensor_graphs.kernels.kernel import Spec
from tests.codegen.launched import Launched

MANY = [(width, heads, of_keys, n, causal, window)
        for width, heads, of_keys in ((64, 32, 32), (128, 16, 16), (256, 8, 8))
        for n in (1024, 4096, 16384) for causal, window in ((True, 0), (False, 0))]
MANY += [(128, 32, 8, 4096, True, 0), (64, 32, 8, 2048, True, 0), (256, 4, 1, 1024, True, 512), (128, 16, 16, 8192, True, 1024)]
"""length of heads, heads, heads of keys, positions, causal, window"""

FLOATS = [(64, 8, 8, 2048, True, 0), (64, 8, 2, 2048, False, 0), (64, 8, 8, 512, True, 0), (128, 16, 16, 4096, True, 0),
          (256, 4, 1, 512, True, 512), (256, 4, 1, 2048, True, 512)]
"""the same, of f32"""

PAGED = [((700,) * 256, 1), (tuple(range(100, 1124, 4)), 1), ((700,) * 16, 1), ((8000,), 1), ((512,) * 4, 512)]
"""positions of sequences, tokens that each adds; heads of Qwen3-0.6B: 16 of 128, 8 of keys"""

ONE = [(128, 32, 8, s) for s in (4096, 16384, 65536, 131072)] + [(256, 4, 1, 32768), (64, 16, 16, 32768)]
"""length of heads, heads, heads of keys, positions"""

BYTES, MOST, ROUNDED = 200 << 20, 8, 8e-3


def drawn(torch: Any, n: int, s: int, heads: int, of_keys: int, width: int, dtype: Any) -> list[Any]:
    return [torch.randn(rows, h, width, device="cuda").to(dtype) for rows, h in ((n, heads), (s, of_keys), (s, of_keys))]


def exact(torch: Any, sets: list[Any], head: int, causal: bool, window: int) -> Any:
    """A head's result in f32."""
    q, k, v = sets
    ours = head // (q.shape[1] // k.shape[1])
    scores = q[:, head].float() @ k[:, ours].float().T / math.sqrt(q.shape[2])
    rows, columns = (torch.arange(x, device="cuda") for x in scores.shape)
    rows = rows[:, None] + scores.shape[1] - scores.shape[0]
    if causal:
        scores.masked_fill_(columns > rows, -math.inf)
    if window:
        scores.masked_fill_(columns <= rows - window, -math.inf)
    return scores.softmax(-1) @ v[:, ours].float()


def error_of(torch: Any, out: Any, sets: list[Any], causal: bool, window: int) -> float:
    worst = 0.0
    for head in (0, out.shape[1] - 1):
        right = exact(torch, sets, head, causal, window)
        found = float((out[:, head].float() - right).abs().max() / right.square().mean().sqrt())
        worst = worst if found <= worst else found
    return worst


def theirs_of(torch: Any, sets: list[list[Any]], causal: bool, window: int) -> dict[str, Callable[[], list[Any]]]:
    """By the name of a backend, the same on all sets."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if sets[0][0].dtype is torch.float32:                           # its backends take no grouped heads of floats
        groups = sets[0][0].shape[1] // sets[0][1].shape[1]
        sets = [[q, *(t.repeat_interleave(groups, 1) for t in (k, v))] for q, k, v in sets]
    q, k, _ = sets[0]
    attend, grouped, mask = torch.nn.functional.scaled_dot_product_attention, q.shape[1] != k.shape[1], None
    if window:
        rows, columns = torch.arange(len(q), device="cuda")[:, None], torch.arange(len(k), device="cuda")
        mask = (columns <= rows) & (columns > rows - window)
    laid = [[t.transpose(0, 1)[None] for t in each] for each in sets]
    found: dict[str, Callable[[], list[Any]]] = {}
    for name, kind in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION),
                       ("efficient", SDPBackend.EFFICIENT_ATTENTION)):
        def run(kind: Any = kind) -> list[Any]:
            with sdpa_kernel(kind):
                return [attend(*each, attn_mask=mask, is_causal=causal and mask is None, enable_gqa=grouped)[0].transpose(0, 1)
                        for each in laid]

        try:
            run()
            found[name] = run
        except RuntimeError:                                        # it does not take this shape
            continue
    return found


def paged(torch: Any, device: Any, lengths: Sequence[int], new: int) -> tuple[float, float, float, float]:
    """Return microseconds of ours and of torch's flash attention over dense caches padded to the longest, bytes of the keys and
    values seen, and our error. The last `new` tokens of each sequence are queries."""
    page, heads, of_keys, width = 16, 16, 8, 128
    counts = [-(-length // page) for length in lengths]
    t, w, rows, longest = new * len(lengths), max(counts), sum(counts) * page, max(lengths)
    q, k, v = drawn(torch, t, rows, heads, of_keys, width, torch.bfloat16)
    order = torch.randperm(sum(counts), device="cuda", dtype=torch.int32)
    table = torch.full((len(lengths), w), -1, device="cuda", dtype=torch.int32)
    for number, part in enumerate(order.split(counts)):
        table[number, :len(part)] = part
    ends = torch.tensor(lengths, device="cuda", dtype=torch.int32)
    positions = (ends[:, None] - new + torch.arange(new, device="cuda", dtype=torch.int32)).reshape(-1).contiguous()
    pages = table.repeat_interleave(new, 0).contiguous()
    leaves = [tg.input(name, tuple(x.shape), tg.bf16) for name, x in zip("qkv", (q, k, v), strict=True)]
    node = tg.paged_attention(*leaves, tg.input("pages", (t, w), tg.i32), tg.input("positions", (t,), tg.i32), page=page,
                              scale=width**-0.5)
    out = torch.full_like(q, float("nan"))
    ours = Launched(device, attention.few_queries(Spec.of(node)), [memory_of_tensor(device, out)],
                    [memory_of_tensor(device, x) for x in (q, k, v, pages, positions)], {})
    at = torch.arange(longest, device="cuda")
    there = (table.clamp(min=0)[:, at // page].long() * page + at % page)                          # [sequences, longest]
    dense = [x[there].transpose(1, 2).contiguous() for x in (k, v)]
    queries = q.view(len(lengths), new, heads, width).transpose(1, 2)
    sees = (at <= positions.view(len(lengths), new, 1))[:, None]
    equal = len(set(lengths)) == 1 and new == 1

    def theirs() -> Any:
        return torch.nn.functional.scaled_dot_product_attention(queries, *dense, attn_mask=None if equal else sees, enable_gqa=True)

    def launch() -> None:
        ours(torch.cuda.current_stream().cuda_stream)

    launch(), theirs()                                              # a graph captures what ran before
    wide = [x.repeat_interleave(heads // of_keys, 1).float() for x in dense]
    right = torch.nn.functional.scaled_dot_product_attention(queries.float(), *wide, attn_mask=sees)
    right = right.transpose(1, 2).reshape(t, heads, width)
    error = float(((out.float() - right).abs().amax(-1) / right.square().mean(-1).sqrt()).max())
    times = microseconds(torch, {"ours": captured(torch, launch), "torch": captured(torch, theirs)}, 1)
    return times["ours"], times["torch"], 4.0 * width * of_keys * sum(lengths), error


def main() -> int:
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=int, default=0, help="heads of this length")
    parser.add_argument("--longest", type=int, default=1 << 20, help="positions, at most")
    given = parser.parse_args()
    device = device_named("cuda:0")
    device.use()
    print(f"{device.hardware()[0]}; torch {torch.__version__}")
    wrong = 0

    def compared(width: int, heads: int, of_keys: int, n: int, s: int, causal: bool, window: int,
                 kind: tg.DType = tg.bf16) -> tuple[dict[str, float], str, bool]:
        dtype = torch.float32 if kind is tg.f32 else torch.bfloat16
        q = tg.input("q", (n, heads, width), kind)
        k, v = (tg.input(name, (s, of_keys, width), kind) for name in "kv")
        spec = Spec.of(tg.attention(q, k, v, scale=width**-0.5, causal=causal, window=window, start=s - n))
        of_many = attention.float_attention if kind is tg.f32 else attention.tensor_attention
        call = attention.few_queries(spec) if n == 1 else of_many(spec)
        nbytes = kind.itemsize * width * (2 * n * heads + 2 * s * of_keys)
        sets = [drawn(torch, n, s, heads, of_keys, width, dtype) for _ in range(max(2, min(MOST, -(-BYTES // nbytes))))]
        outs = [torch.full((n, heads, width), float("nan"), device="cuda", dtype=dtype) for _ in sets]
        launched = [Launched(device, call, [memory_of_tensor(device, o)], [memory_of_tensor(device, t) for t in each], {})
                    for o, each in zip(outs, sets, strict=True)]

        def ours() -> None:
            for each in launched:
                each(torch.cuda.current_stream().cuda_stream)

        ours()
        torch.cuda.synchronize()
        mine = error_of(torch, outs[0], sets[0], causal, window)
        runs = theirs_of(torch, sets, causal and n > 1, window)
        if not runs:
            raise SystemExit("torch has no backend for this")
        torchs = error_of(torch, next(iter(runs.values()))()[0], sets[0], causal, window)
        bad = not mine <= max(2 * torchs, ROUNDED)
        contenders = {"ours": captured(torch, ours)}
        for name, run in runs.items():
            try:
                contenders[name] = captured(torch, run)
            except RuntimeError:
                torch.cuda.synchronize()
        times = microseconds(torch, contenders, len(sets))
        return times, f"{mine:10.1e}{torchs:10.1e}{'  WRONG' * bad}", bad

    of_torch = f"{'flash':>9s}{'cudnn':>9s}{'efficient':>10s}"
    print(f"{'':44s}{'ours':>9s}{'Tflop/s':>9s}{of_torch}{'best ÷ ours':>13s}{'error':>10s}{'torch':>10s}")
    for kind, (width, heads, of_keys, n, causal, window) in [*((tg.bf16, s) for s in MANY), *((tg.f32, s) for s in FLOATS)]:
        if given.only not in (0, width) or n > given.longest:
            continue
        times, errors, bad = compared(width, heads, of_keys, n, n, causal, window, kind)
        wrong += bad
        pairs = n * min(window, n) if window else n * n / 2 if causal else n * n
        best = min((t for name, t in times.items() if name != "ours"), default=math.nan)
        what = f"{kind} {n} × {heads} ({of_keys}) × {width}{' causal' * causal}{f' window {window}' if window else ''}"
        shown = "".join(f"{times.get(name, math.nan):9.1f}" for name in ("flash", "cudnn", "efficient"))
        rate = 4e-6 * pairs * heads * width / times["ours"]
        print(f"{what:44s}{times['ours']:9.1f}{rate:9.0f}{shown} {best / times['ours']:13.2f}{errors}", flush=True)
    copy = copy_bandwidth()
    print(f"one query; a copy moves {copy / 1e12:.2f} TB/s\n{'':44s}{'ours':>9s}{'share':>9s}{of_torch}")
    for width, heads, of_keys, s in ONE:
        if given.only not in (0, width) or s > given.longest:
            continue
        times, errors, bad = compared(width, heads, of_keys, 1, s, True, 0)
        wrong += bad
        share = 4 * width * of_keys * s / copy * 1e6 / times["ours"]
        shown = "".join(f"{times.get(name, math.nan):9.1f}" for name in ("flash", "cudnn", "efficient"))
        print(f"{f'{s} keys × {heads} ({of_keys}) × {width}':44s}{times['ours']:9.1f}{share:9.0%}{shown} {errors}", flush=True)
    print(f"keys in pages; torch's caches are dense, padded to the longest\n{'':44s}{'ours':>9s}{'share':>9s}{'torch':>9s}")
    for lengths, new in PAGED:
        took, torchs, nbytes, error = paged(torch, device, lengths, new)
        wrong += not error <= 4 * ROUNDED                           # of each row to its own rms
        what = f"{len(lengths)} × {min(lengths)} to {max(lengths)} keys, {new} queries"
        print(f"{what:44s}{took:9.1f}{nbytes / copy * 1e6 / took:9.0%}{torchs:9.1f}{error:10.1e}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
