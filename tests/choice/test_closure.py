"""What compiling a graph loads that has no plan on file: the way from a graph to a plan, and nothing that is beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec

BUDGET, ALL = 15_560, 22_100
"""lines of this package: without the library of composites, which grows with every op and is loaded by the page, and with it. What
goes beyond is behind a door (choice/deferred_measure.py, rewriting.py), or the budget is raised, aloud"""

LIBRARY = "tensor_graphs.language.composites"

NOT_NEEDED = ("proof", "measure", "views", "rewrites.admission", "rewrites.egraph", "frontends", "models", "runtime", "cli",
              "meaning.interpreter", "language.autodiff", "language.dim_enumeration", "language.json_reader",
              "language.text_reader", "language.tracing", "language.call_errors", "language.overflowing_numbers",
              "records.work_queue", "records.queries", "records.upkeep", "records.migrating", "records.views",
              "records.driver_errors", "records.unstorable_values", "devices.toolchain", "kernels.kernel_decorator",
              "kernels.check_declaration", "kernels.declaration_place", "rewrites.passes.apply_precision", "paths.pin_file",
              "paths.path_reader", "paths.plan_text", "paths.fit_terminal", "choice.path_listing", "choice.requested_path",
              "choice.memory_limit")

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


def test_what_is_not_needed_is_there() -> None:
    assert [name for name in NOT_NEEDED if find_spec(f"tensor_graphs.{name}") is None] == []
