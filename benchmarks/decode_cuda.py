"""Decode speed of Gemma-3-270M in bf16 on a GPU, batch 1, beside transformers there: eager, and with torch.compile.

    python benchmarks/decode_cuda.py [--steps 200] [--layers 18] [--vocabulary 262144] [--peers eager,compile] [--tokens 24]

A folder with random weights is made. Ours runs with the backends cuda, gencuda, torchcuda: the likeliest token is found on the
device. Its tokens are first compared with those of the same graph on the cpu, as far as these are sure of each (the first that
differs is printed). Then steps take turns: milliseconds of one, median and quartiles, the device waited for. Each peer is a process
of its own, which times its own steps; one that ends is left out. Printed too: how many
launches a step has, how often they were captured (once, however long the cache grows), the microseconds of a replay by the device's
events, and the limit: the bytes of all weights over the bandwidth of a copy in the same run. torch.compile has a static cache and a
mode that replays CUDA graphs. Needs a GPU and transformers.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks import make_gemma_folder
from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.choice.profile_graph import profile_graph
from tensor_graphs.devices.device_registry import device_named
from tensor_graphs.frontends.huggingface.load import LoadedModel, load_model
from tensor_graphs.kernels.registry import whole_kernels
from tensor_graphs.runtime.compiled_graph import bind
from tensor_graphs.runtime.segments.decoder_kernel import AllSteps
from tensor_graphs.runtime.segments.launches import Launches
from tensor_graphs.views.explain import explain

PROMPT = [2, 9, 258, 1001, 37, 4400]
MODES = {"eager": None, "compile": "reduce-overhead", "autotune": "max-autotune"}
"""peers -> torch.compile's mode; the last takes minutes"""

ROOM = 2048
"""tokens of a static cache"""

IN_A_ROW = 20
"""runs between two events, so that the host is ahead"""

AT, LARGEST = {"n": 1, "m": 1, "p": 64}, {"n": 1, "m": 1, "p": ROOM}
"""sizes for which ours is chosen, and up to which"""


class Decoder(ABC):
    """last: the token that is fed next. logit: the largest of the last step."""

    last, logit = 0, 0.0

    @abstractmethod
    def step(self) -> int:
        """Feed the last token; the next one."""

    def prefill(self) -> None:
        for token in PROMPT:
            self.last = token
            self.step()

    def timed_step(self) -> float:
        """Milliseconds of a step."""
        start = time.perf_counter()
        self.step()
        return (time.perf_counter() - start) * 1e3


class Ours(Decoder):
    def __init__(self, model: LoadedModel, backends: tuple[str, ...], database: str, at_once: bool = False) -> None:
        begun = time.perf_counter()
        made = partial(compile_graph, model.greedy_graph, backends=backends, database=database, at=AT, largest=LARGEST,
                       reuse_outputs=True)
        self.plan = made()
        if at_once:
            self.plan = made(path=self.plan.variants[0].path.at_once(*whole_kernels(backends)))
        self.seconds = time.perf_counter() - begun
        self.made = bind(self.plan, model.weights)
        self.session = self.made.session()
        self.past = 0

    def step(self) -> int:
        found = self.made.run({"ids": np.array([self.last], np.int32)}, dims={"p": self.past, "m": 1}, session=self.session)
        self.past += 1
        self.last, self.logit = int(found["token"][0]), float(found["logit"][0])
        return self.last

    def replays(self) -> list[tuple[int, int, float]]:
        """(launches, captures, microseconds of one replay) of each run of launches."""
        found = []
        for segment in self.made.executors[0].segments:
            if isinstance(segment, Launches):
                for frame in self.made._frames[0]:
                    if isinstance(segment, AllSteps):
                        found.append((1, 0, statistics.median(self._timed(partial(segment.run, frame)))))
                        continue
                    kept = frame.kept.get(id(segment))
                    for replay in [] if kept is None else kept.replays.kept.values():
                        us = statistics.median(self._timed(replay.run))
                        found.append((sum(map(len, kept.launches)), len(kept.replays.kept), us))
        return found

    def _timed(self, run: Callable[[], None]) -> list[float]:
        """Microseconds of one of several runs in a row, by the device's events."""
        device, times = device_named("cuda:0"), []
        for _ in range(5):
            start = device.mark()
            for _ in range(IN_A_ROW):
                run()
            times.append(device.between(start, device.mark()) / IN_A_ROW * 1e6)
        return times


class Theirs(Decoder):
    """transformers over a static cache; mode: of torch.compile, None for eager."""

    def __init__(self, folder: Path, mode: str | None, device: str = "cuda") -> None:
        import torch
        from transformers import AutoModelForCausalLM, StaticCache

        self.torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device).eval()
        self.cache = StaticCache(config=self.model.config, max_cache_len=ROOM)
        self.forward: Any = self.model.forward
        self.mode = mode
        self.ids = torch.zeros(1, 1, dtype=torch.long, device=device)
        self.at = torch.zeros(1, dtype=torch.long, device=device)

    def step(self) -> int:
        torch = self.torch
        with torch.inference_mode():
            self.ids.fill_(self.last)
            out = self.forward(input_ids=self.ids, past_key_values=self.cache, cache_position=self.at, position_ids=self.at[None],
                               use_cache=True)
            self.at += 1
            logit, token = out.logits[0, -1].max(-1)
            self.last, self.logit = int(token), float(logit)
        return self.last

    def prefill(self) -> None:
        self.step()                                                 # the cache makes its tensors, which a compiled step must find
        self.at.zero_()
        if self.mode is not None:
            self.forward = self.torch.compile(self.model.forward, mode=self.mode, fullgraph=True)
        super().prefill()

    def serve(self) -> None:
        """A step for each line that comes; its milliseconds in a line."""
        self.prefill()
        for _ in range(5):
            self.step()
        print("ready", flush=True)
        for _ in sys.stdin:
            print(f"{self.timed_step():.6f}", flush=True)


class Peer:
    """A process that does `Theirs.serve`."""

    def __init__(self, folder: Path, name: str) -> None:
        self.process = subprocess.Popen([sys.executable, __file__, "--serve", name, "--folder", str(folder)], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        while (said := self._line()) != "ready":
            print(f"{name}: {said}", flush=True)

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"it ended with {self.process.wait()}")
        return line.strip()

    def timed_step(self) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self._line())

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def copy_bandwidth() -> float:
    """byte/s of a copy of 1 GiB on the device, read and written; the best of several."""
    device = device_named("cuda:0")
    source, into = (device.allocate(1 << 30) for _ in range(2))
    device.fill(source, 1)
    best = 0.0
    for _ in range(10):
        start = device.mark()
        device.copy(source, into)
        best = max(best, 2 * (1 << 30) / device.between(start, device.mark()))
    return best


def main() -> int:
    doc = __doc__ or ""
    parser = argparse.ArgumentParser(description=doc.split("\n", 1)[0], epilog=doc.split("\n", 1)[1],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--layers", type=int, default=18)
    parser.add_argument("--vocabulary", type=int, default=262144)
    parser.add_argument("--peers", default="eager,compile", help=f"of {', '.join(MODES)}; empty: none")
    parser.add_argument("--tokens", type=int, default=24, help="that are compared with the cpu's first")
    parser.add_argument("--backends", default="cuda,gencuda,torchcuda,numpy")
    parser.add_argument("--profile", type=float, default=0.0, help="seconds in which the graph is profiled before")
    parser.add_argument("--at-once", action="store_true", help="one kernel for all steps, whether it is chosen or not")
    parser.add_argument("--serve", choices=list(MODES), help="be this peer: time a step for each line of the standard input")
    parser.add_argument("--folder", type=Path, help="of the model that --serve loads")
    args = parser.parse_args()
    if args.serve:
        Theirs(args.folder, MODES[args.serve]).serve()
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder, database = Path(name) / "model", str(Path(name) / "bench.db")
        sizes = ["--layers", str(args.layers), "--vocabulary", str(args.vocabulary)]
        make_gemma_folder.main([str(folder), "--dtype", "bfloat16", *sizes])
        model = load_model(folder, dtype="bfloat16")
        backends = tuple(args.backends.split(","))
        if args.profile:
            begun = time.perf_counter()
            said = profile_graph(model.greedy_graph, budget=args.profile, backends=backends, database=database, at=AT,
                                 largest=LARGEST)
            print(f"profiled for {time.perf_counter() - begun:.0f} s: {said.measured} times", flush=True)
        ours = Ours(model, backends, database, args.at_once)
        print(explain(ours.plan, rows=2), flush=True)
        print(f"compiled in {ours.seconds:.1f} s", flush=True)
        wrong = 0
        if args.tokens:
            right = Ours(model, ("c", "gen", "numpy"), database)
            right.prefill()
            ours.prefill()
            expected, found = ([each.last, *(each.step() for _ in range(args.tokens - 1))] for each in (right, ours))
            same = next((i for i, (a, b) in enumerate(zip(expected, found, strict=True)) if a != b), len(found))
            print(f"the first {same} of {len(found)} tokens are those of the cpu" + ("" if same == len(found) else
                  f"; then {found[same]} instead of {expected[same]}"), flush=True)
            wrong = int(same < len(found) // 2)
        else:
            ours.prefill()
        alone = [ours.timed_step() for _ in range(args.steps)]
        print(f"ours alone {statistics.median(alone):.3f} ms", flush=True)
        for launches, captures, us in ours.replays():
            print(f"one replay: {launches} launches, {us:.0f} µs; replays that were kept: {captures}", flush=True)
        contenders: dict[str, Ours | Peer] = {"ours": ours}
        for peer in [p for p in args.peers.split(",") if p]:
            try:
                contenders[peer] = Peer(folder, peer)
            except RuntimeError as e:                               # a version of transformers that this does not fit
                print(f"{peer}: {e}", flush=True)
        samples: dict[str, list[float]] = {n: [] for n in contenders}
        for _ in range(args.steps):
            for n, each in contenders.items():
                samples[n].append(each.timed_step())
        for each in contenders.values():
            if isinstance(each, Peer):
                each.end()
        limit = sum(np.asarray(w).nbytes for w in model.weights.values()) / copy_bandwidth() * 1e3
        print(f"limit {limit:.3f} ms: the bytes of the weights over the bandwidth of a copy")
        for n, found_ms in samples.items():
            low, median, high = np.quantile(found_ms, [0.25, 0.5, 0.75])
            print(f"{n:8s} {median:8.3f} ms ({low:.3f} to {high:.3f})  ÷ ours {median / statistics.median(samples['ours']):6.2f}")
    return wrong


if __name__ == "__main__":
    raise SystemExit(main())
