"""What compiling a graph loads that has no plan on file: the way from a graph to a plan, and nothing that is beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

BUDGET, ALL = 15_540, 19_620
"""lines of this package: without the library of composites, which grows with every op and is loaded by the page, and with it. What
goes beyond is behind a door (choice/deferred_measure.py, rewriting.py), or the budget is raised, aloud"""

LIBRARY = "tensor_graphs.language.composites"

NOT_NEEDED = ("proof", "measure", "views", "rewrites.admission", "rewrites.egraph", "frontends", "models", "runtime", "cli",
              "meaning.interpreter", "language.autodiff", "language.dim_trials", "language.json_reader", "language.text_reader",
              "language.tracing", "language.call_errors", "language.out_of_range",
              "records.claims", "records.queries", "records.upkeep", "records.migrating",
              "records.views", "records.driver_errors", "records.wrong_values", "devices.toolchain", "kernels.host_kernel",
              "kernels.declaration", "kernels.location", "rewrites.passes.widen", "paths.pin", "paths.path_reader",
              "paths.plan_screen", "paths.fit_screen", "choice.listing", "choice.replay", "choice.memory_limit")

SCRIPT = """
import json, sys
import tensor_graphs.choice.compile, tensor_graphs.choice.search
ours = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "tensor_graphs" and module.__file__}
print(json.dumps({name: len(open(module.__file__, encoding="utf-8").read().splitlines()) for name, module in ours.items()}))
"""


def test_what_compiling_loads_is_within_its_budget() -> None:
    made = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    lines: dict[str, int] = json.loads(made.stdout)
    library = sum(count for name, count in lines.items() if name.startswith(LIBRARY))
    total = sum(lines.values()) - library
    rooms: Counter[str] = Counter()
    for name, count in lines.items():
        rooms[name.split(".")[1] if "." in name else "the page"] += count
    largest = ", ".join(f"{room} {count}" for room, count in rooms.most_common(8))
    sys.stderr.write(f"{total} lines and {library} of composites: {largest}\n")
    beside = sorted(name for name in lines if any(f"{name}.".startswith(f"tensor_graphs.{room}.") for room in NOT_NEEDED))
    assert not beside, f"compiling loads {', '.join(beside)}"
    assert total <= BUDGET, f"compiling loads {total} lines, {BUDGET} are allowed: {largest}"
    assert total + library <= ALL, f"compiling loads {total + library} lines with the composites, {ALL} are allowed: {largest}"
