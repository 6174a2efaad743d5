"""torch_module_info: PyTorch's own samples of its modules (ModuleInfo), as graphs, against eager torch.

    python benchmarks/torch_module_info.py [--only nn.Conv2d,nn.GRU]

As in torch_op_info.py the oracle evaluates the graphs. It prints, for each module, how many samples are right, run with ops that
torch computes between graphs (opaque), are wrong, or fail, and the share that runs.
"""

from __future__ import annotations

import argparse
import collections
import sys
import warnings
from pathlib import Path

import torch
from torch._dynamo.backends.common import aot_autograd
from torch.utils import _pytree as pytree

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.torch_op_info import Interpreted, line_of
from benchmarks.torch_samples import module_db
from tensor_graphs.frontends.torch.backend import boxed, decompositions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--most", type=int, default=3, help="samples per module")
    options = parser.parse_args()
    torch._dynamo.config.allow_rnn = True
    total: collections.Counter[str] = collections.Counter()
    for info in module_db:
        if options.only and info.name not in options.only.split(","):
            continue
        torch.manual_seed(0)
        samples = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=False, training=False)
        counts: collections.Counter[str] = collections.Counter()
        for sample in samples[:options.most]:
            status, reason = judge(info, sample)
            counts[status] += 1
            if reason:
                print(f"  {info.name} {status}: {reason}", flush=True)
        total += counts
        print(f"{info.name}: {dict(counts)}", flush=True)
    print(f"{dict(total)}; {100 * (total['right'] + total['opaque']) / max(total.total(), 1):.1f} % run and are right")


def judge(info: object, sample: object) -> tuple[str, str]:
    """Return (right, opaque, wrong or failed; the reason) of one sample."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs).eval()  # type: ignore[attr-defined]
        feeds, named = sample.forward_input.args, sample.forward_input.kwargs  # type: ignore[attr-defined]
        modules: list[Interpreted] = []

        def compiler(graph: torch.fx.GraphModule, _: object) -> object:
            modules.append(Interpreted(graph, {}, False))
            return boxed(modules[-1])

        with torch.no_grad():
            try:
                expected = module(*feeds, **named)
            except Exception as error:
                return "failed", f"eager torch: {line_of(error)}"
            try:
                backend = aot_autograd(fw_compiler=compiler, bw_compiler=compiler, decompositions=decompositions())
                enabled = torch._C._get_mkldnn_enabled()
                torch._C._set_mkldnn_enabled(False)
                try:
                    result = torch.compile(module, backend=backend)(*feeds, **named)
                finally:
                    torch._C._set_mkldnn_enabled(enabled)
                for one, other in zip(pytree.tree_leaves(result), pytree.tree_leaves(expected), strict=True):
                    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4, equal_nan=True)
            except AssertionError as error:
                return "wrong", line_of(error)
            except Exception as error:
                return "failed", line_of(error)
    opaque = {name: why for m in modules for name, why in m.opaque.items()}
    return ("opaque", str(opaque)) if opaque else ("right", "")


if __name__ == "__main__":
    main()
