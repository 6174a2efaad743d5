"""no_path: why nothing that may be used computes a graph, and what to do: what a person reads in place of a plan or a list."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tensor_graphs.compiler.choose import PriceBook
from tensor_graphs.compiler.request import roundoff
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.registry import left_out, matching
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language.composite import CompositeOp, is_loop
from tensor_graphs.paths.path import NoPathError, Paths
from tensor_graphs.rewrites.unroll import IN_ALL, why_whole

TURNS = "for a loop a length that is a number and not too large, or a backend that runs it as it is, like numpy; else "
"""of a loop, before OTHERWISE"""

OTHERWISE = ("other backends (tg devices lists them); what was not compared yet is by tg profile, and what failed once is compared "
             "again by tg db retry KERNEL")


def with_reasons(error: NoPathError, paths: Paths, book: PriceBook, table: Mapping[str, list[Kernel]],
                 binding: Mapping[str, int]) -> NoPathError:
    """The same error with what was refused and why, and a fix: when only the tolerance stands in the way, the one that would do.

    paths: those of which there is none, at these sizes.
    """
    reached: dict[str, float] = {}

    def best_error(s: Signature) -> float:
        if s.key not in reached:
            reached[s.key] = math.inf
            errors = [book.error(k, s, binding) for k in matching(s.spec, table)
                      if book.why_wrong(k, s, binding) is None]
            inner = max((best_error(i) for i, _ in paths.within(s)), default=0.0) if _may_expand(s) else math.inf
            reached[s.key] = min([inner, *(e for e in errors if e is not None)])
        return reached[s.key]

    def enough(s: Signature) -> float:
        """What rounding its result costs is within what can be reached, also where the numbers seen were kinder."""
        return max(best_error(s), *(roundoff(t.dtype) for t in s.spec.outputs if best_error(s) > roundoff(t.dtype) / 2), 0.0)

    def reached_by(s: Signature) -> str:
        direct = [e for k in matching(s.spec, table) if book.why_wrong(k, s, binding) is None
                  and (e := book.error(k, s, binding)) is not None]
        return "" if min(direct, default=math.inf) <= best_error(s) else " by its definition"

    culprits = [s for s, _ in paths.top if paths.best(s)[1] is None]
    needed = max(map(enough, culprits))
    lines = []
    for s in culprits[:5]:
        refused = [f"{k.name}: {why}" for k in matching(s.spec, table)
                   if (why := book.refusal(k, s, binding)) is not None]
        refused += [f"{k.name}: {why}" for k, why in left_out(s.spec, table)]
        best = "nothing that computes it is right here"
        if best_error(s) < math.inf:
            best = f"best error {best_error(s):.2g}{reached_by(s)}"
        lines.append(f"{s.title()}: {best}" + (f" ({'; '.join(refused[:4])})" if refused else ""))
        if is_loop(s.spec.op) and not matching(s.spec, table):
            lines[-1] += f"; {why_whole(s.spec.inputs, s.spec.attrs) or IN_ALL}"
    listed = "\n  ".join(lines)
    if needed == math.inf:
        fix = TURNS + OTHERWISE if any(is_loop(s.spec.op) for s in culprits) else OTHERWISE
        return NoPathError(f"{error}\n  {listed}\n  fix: {fix}")
    coarse = sorted({t.dtype for s in culprits for t in s.spec.outputs if roundoff(t.dtype) > book.tolerance}, key=str)
    listed += "".join(f"\n  rounding a result to {dtype} costs up to {roundoff(dtype):.1e} by itself" for dtype in coarse)
    return NoPathError(f"no path is within the tolerance {book.tolerance:.2g}\n  {listed}\n"
                       f"  fix: a tolerance of {_rounded_up(needed)} or more")


def _may_expand(s: Signature) -> bool:
    return isinstance(s.spec.op, CompositeOp) and not s.spec.op.opaque


def _rounded_up(x: float) -> str:
    """Two digits, never less than x: what is advised must be enough."""
    text = f"{x:.1e}"
    return text if float(text) >= x else f"{x * 1.05:.1e}"
