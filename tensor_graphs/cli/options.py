"""options: functions that verbs share: options and their checks, the database, sizes, files, JSON documents, progress."""

from __future__ import annotations

import difflib
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensor_graphs.errors import TensorGraphsError, close_to
from tensor_graphs.phase_times import IMPORT, phase

if TYPE_CHECKING:
    from rich.console import Console

    from tensor_graphs.frontends.onnx.importer import OnnxModel
    from tensor_graphs.language.graph import Graph
    from tensor_graphs.records.database import Database
    from tensor_graphs.views.summary import PlanSummary

Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output, nothing else there.")]
DatabaseAt = Annotated[
    str | None,
    typer.Option("--db", help="Path or URL of the database (default: TENSOR_GRAPHS_DB, else the user's data folder)."),
]


SCREEN_COLUMNS = 140
"""width of a table that is written to a file or a pipe"""

told = False
"""True if the verb has reported an interruption itself"""


class UsageError(TensorGraphsError):
    """Wrong usage of the command line: exit code 2."""


class NotPossible(TensorGraphsError):
    """A valid command line with a file, a model or a database that the verb cannot use: exit code 1."""


def tolerance_of(value: float | str | None) -> float | None:
    """Return the value of --tolerance as a number. Raises UsageError."""
    if value is None:
        return None
    try:
        error = float(value)
    except ValueError:
        raise UsageError(f"--tolerance {value}: rows of kernels are ranked by their largest relative error, a number\n"
                         "  fix: --tolerance 1e-3; for norm, kl and cosine of whole plans: tg pareto") from None
    if not 0 <= error < math.inf:
        raise UsageError(f"--tolerance {error:g}: a relative error is a number ≥ 0\n  fix: --tolerance 1e-3")
    return error


Tolerance = Annotated[
    float,
    typer.Option(parser=tolerance_of, metavar="FLOAT",
                 help="Largest relative error against float64: of any kernel (measured), of the graph (predicted)."),
]


def accuracy_of(value: str | None) -> str | None:
    """Return the value of --tolerance of a graph. Raises UsageError."""
    if value is None:
        return None
    from tensor_graphs.argument_checks import ArgumentError  # here: numpy is not needed for `tg --help`
    from tensor_graphs.meaning.accuracy import parse

    try:
        parse(value)
    except ArgumentError as e:
        raise UsageError(f"--tolerance {value}: {e}") from None
    return value


GraphTolerance = Annotated[
    str | None,
    typer.Option(
        "--tolerance",
        metavar="ACCURACY",
        callback=accuracy_of,
        help="Bound on the error against float64, beyond the outputs' last rounding, measured on the whole path: 1e-5, norm:1e-3, "
        "kl:0.01, top1:0.98, cosine:0.999, as_written:1.0, kl:logits:0.01 for one output, several joined by &. "
        "[default: as written, nothing narrower than the graph says]",
    ),
]


TextFile = Annotated[
    str | None,
    typer.Option("--text", metavar="FILE",
                 help="A text in UTF-8 on whose tokens the error for --tolerance is measured (default: the model's own text)."),
]


def _precision(value: str | None) -> str | None:
    if value is not None:
        from tensor_graphs.argument_checks import ArgumentError  # here: as above
        from tensor_graphs.meaning.precision import parse_form

        try:
            parse_form(value)
        except ArgumentError as e:
            raise UsageError(f"--precision {value}: {e}") from None
    return value


PrecisionWords = Annotated[
    str | None,
    typer.Option(
        "--precision",
        callback=_precision,
        metavar="WORDS",
        help="Dtypes inside the graph, whatever the tolerance: f64, f32, f16, bf16, written for all of it, tf32, bf16x2, f8e4m3, "
        "int8 or int8x2 (x of products by blocks) for its products, q8_0, q6_k, q5_k, q4_k, q4_0, … for its weights, or words of "
        "sites, as between=f32,product:model.layers.*=bf16 (kinds: between, product, weight, state). "
        "[default: as the tolerance says]",
    ),
]


def _model_dtype(parameter: typer.CallbackParam, value: str | None) -> str | None:
    if value is not None and value not in MODEL_DTYPES:
        raise UsageError(f"{parameter.opts[0]} {value}: a model's values cannot be kept in that\n  fix: float32 or bfloat16")
    return value


MODEL_DTYPES = ("float32", "bfloat16", "f32", "bf16")
WeightDtype = Annotated[
    str | None,
    typer.Option("--dtype", callback=_model_dtype,
                 help="Of a model's weights: float32 or bfloat16 (default: as the files store them)."),
]
ActivationDtype = Annotated[
    str | None,
    typer.Option("--activations", callback=_model_dtype,
                 help="Of a model's values between ops and of its KV cache: float32 or bfloat16 (default: as the weights)."),
]
Backends = Annotated[
    str | None,
    typer.Option(
        help="Comma-separated backends a plan may use: c, gen, numpy, torch, on a GPU cuda, gencuda, torchcuda, triton, or one "
        "that is installed (default: c,gen,numpy).",
    ),
]


def _import(values: list[str] | None) -> list[str] | None:
    from tensor_graphs.cli.importing import COMPOSITES, imported, take_composites

    COMPOSITES.clear()
    for value in values or ():
        take_composites(imported(value, "--import"))
    return values


Imports = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="FILE", callback=_import,
                 help="A Python module with kernels, composites, rules or families of models of yours: a path or a dotted name. "
                 "Repeatable."),
]
STOPPED = "stopped; all that was measured is stored, and the same command goes on from there"
"""the last line that a measuring verb prints after Ctrl-C"""


def _threads(value: int | None) -> int | None:
    from tensor_graphs.devices.environment import MOST_THREADS, most_threads, usable_cores

    if value is not None and value > most_threads():
        cores = usable_cores()
        raise UsageError(
            f"--threads {value}: that is more than {MOST_THREADS} for each core that this process may use ({cores})\n"
            f"  fix: --threads {cores}, or leave it out"
        )
    return value


Threads = Annotated[
    int | None,
    typer.Option(min=1, callback=_threads, help="Threads (default: what this process may use; four times as many at most)."),
]
PlanFile = Annotated[
    str | None,
    typer.Option("--plan", metavar="FILE", help="Run the paths that `tg plan … --pin FILE` wrote, instead of choosing."),
]
Source = Annotated[
    str, typer.Argument(metavar="FILE|MODEL", help="A .tg or .onnx file, a model folder, a .gguf file, or a built-in shape.")
]
At = Annotated[str | None, typer.Option("--at", help="Sizes of dims to cost at, like n=1,p=256.")]
Largest = Annotated[
    str | None, typer.Option("--largest", help="Sizes up to which it will be used (default: the dims' upper bounds), like n=64.")
]
MemoryLimit = Annotated[int | None, typer.Option("--memory-limit", min=1, help="Bytes the device may use in all.")]
RandomWeights = Annotated[
    int | None,
    typer.Option("--random-weights", min=0, help="Draw the weights from this seed instead of reading them (docs/cli.md says how)."),
]
OnnxDims = Annotated[
    str | None, typer.Option("--dims", help="Of an .onnx file: sizes or ranges of its dims, like batch=8,seq=1..64."),
]
InputsFile = Annotated[
    Path | None, typer.Option("--inputs", metavar="FILE.npz", help="Of an .onnx file: its inputs by name (default: random ones)."),
]
OutputsFile = Annotated[
    Path | None, typer.Option("--out", metavar="FILE.npz", help="Of an .onnx file: write its outputs there."),
]
MOST_ROWS = 1_000_000
"""limit on the rows of a listing: larger ones are for SQL, or a typing error"""

System = Annotated[
    str | None, typer.Option("--system", help="A text that goes before the turns, through the folder's chat template.")
]
Temperature = Annotated[
    float | None,
    typer.Option(help="Draw instead of taking the likeliest; 0 is greedy. "
                 "[default: 0, or 1 with --top-k, --top-p, --min-p or --seed]"),
]
TopK = Annotated[int, typer.Option(help="Draw from the k likeliest; 0 is off: from all.")]
TopP = Annotated[float, typer.Option(help="Draw from the smallest set that holds this probability; 1 is off.")]
MinP = Annotated[
    float, typer.Option(help="Draw from tokens that have at least this share of the likeliest one's probability; 0 is off.")
]
RepetitionPenalty = Annotated[
    float, typer.Option(help="Make tokens of the text so far less likely: positive logits are divided by it; 1 is off.")
]
Seed = Annotated[int | None, typer.Option(help="Of the draws. [default: 0]")]
Stop = Annotated[list[str] | None, typer.Option(metavar="TEXT", help="End before this text, once it is generated. Repeatable.")]
Logprobs = Annotated[
    bool, typer.Option("--logprobs", help="With --json or --jsonl: the log probability that the model gives each new token.")
]
JsonLines = Annotated[
    bool, typer.Option("--jsonl", help="One JSON object a line for each token as it comes; the last line is the --json document.")
]
Sequences = Annotated[int, typer.Option("--sequences", min=1, max=4096, help="Requests that run together at most.")]

Invariant = Annotated[
    bool, typer.Option("--invariant", help="Tokens do not depend, bit by bit, on the requests that run beside.")
]

MostWaiting = Annotated[int, typer.Option(min=0, help="Requests that may wait; more get 429.")]
MostPrompt = Annotated[int | None, typer.Option(min=1, help="Tokens that a prompt may have. [default: what the cache holds]")]
MostBody = Annotated[int, typer.Option(min=1, help="Bytes that the body of a request may have; more get 413.")]
AnswerTimeout = Annotated[float, typer.Option(min=0.001, help="Seconds that an answer may take; later it is cut, with 504.")]
Calibration = Annotated[
    str | None, typer.Option(metavar="FILE", help="A text, whose activations say how much each column of a weight counts. "
                             "[default, where types are chosen: the model's own text]")
]
MaxPositions = Annotated[int | None, typer.Option(min=1, help="Positions that the KV cache holds.")]


def backends(text: str | None) -> tuple[str, ...]:
    """Return the backends that --backends names; without it, the default backends of a plan. Raises UsageError."""
    with phase(IMPORT):
        from tensor_graphs.kernels.registry import BACKENDS, DEFAULT_BACKENDS

    if text is None:
        return DEFAULT_BACKENDS
    names = tuple(n.strip() for n in text.split(",") if n.strip())
    for n in names:
        if n not in BACKENDS:
            near = close_to(n, BACKENDS)
            meant = f"did you mean {' or '.join(near)}? There are " if near else ""
            raise UsageError(f"--backends: {n!r} is no backend\n  fix: {meant}{', '.join(sorted(BACKENDS))}")
    if not names:
        raise UsageError("--backends names no backend\n  fix: --backends c,gen,numpy")
    return names


def given_backends(text: str | None) -> tuple[str, ...] | None:
    """Return the backends that --backends names; without it None, which means those of a given plan, else the default ones."""
    return None if text is None else backends(text)


def known(option: str, words: Sequence[str], names: Sequence[str]) -> None:
    """Raise UsageError if one of `words` is not among `names`; the fix lists similar names, or up to 12 of all."""
    for word in words:
        if word not in names:
            near = difflib.get_close_matches(word, names) or (names if len(names) <= 12 else [*sorted(names)[:12], "…"])
            raise UsageError(f"{option} {word!r}: there is none of that name\n  fix: {', '.join(near)}")


def database(target: str | None, *, create: bool = True, pinned: bool = False) -> Database:
    """Return the database at `target`. create=False: raise an error instead of making a new one, for verbs that only read. pinned:
    the plan is given, so that a database in memory is used if that at `target` cannot be."""
    with phase(IMPORT):
        from tensor_graphs.records import DatabaseError
        from tensor_graphs.records.database import open_database

    try:
        return open_database(target, create=create, make_folder=target is None)
    except DatabaseError as error:
        if not pinned:
            raise
        note(f"the plan is made without the database: {str(error).partition(chr(10))[0]}")
        return open_database(":memory:")


def sizes(text: str | None, graph: Graph, option: str = "--at") -> dict[str, int]:
    """Return `n=1,p=64` as a dict of sizes, for dims that the graph has, within their bounds. Raises UsageError."""
    from tensor_graphs.language.dims import why_no_size

    out: dict[str, int] = {}
    for part in [] if text is None else text.split(","):
        name, sign, value = (piece.strip() for piece in part.partition("="))
        if not sign or not value.isdecimal():
            raise UsageError(
                f"{option}: {part!r} is not a size like n=1\n  fix: the dims are {', '.join(graph.dims) or '(none)'}"
            )
        if name not in graph.dims:
            raise UsageError(
                f"{option}: the graph has no dim named {name!r}\n  fix: its dims are {', '.join(graph.dims) or '(none)'}"
            )
        if name in out:
            raise UsageError(f"{option}: {name!r} is given twice\n  fix: once, like {name}={value}")
        why = why_no_size(name, int(value), graph.dims[name])
        if why is not None:
            raise UsageError(f"{option}: {why}")
        out[name] = int(value)
    return out


MOST_TEXT = 1 << 26
"""limit on the bytes of a text file; larger arrays of a .tg file belong into weights"""


def text_of(option: str, file: str, fix: str) -> str:
    """Return the text of an option's file, or of a pipe. Raises NotPossible, with this fix."""
    from tensor_graphs.regular_file import read_text

    try:
        return read_text(file, MOST_TEXT, pipes=True)
    except (OSError, ValueError) as e:
        why = f"is not UTF-8 text (byte {e.start})" if isinstance(e, UnicodeDecodeError) else (
            f"cannot be read: {e.strerror if isinstance(e, OSError) else e}")
        raise NotPossible(f"{option} {file} {why}\n  fix: {fix}") from None


A_GRAPH = ("the path of a .tg file, like examples/softmax.tg (docs/tg_format.md), or of an .onnx file; "
           "verbs of models take a folder, too (tg models)")
"""the fix for a path at which there is no graph"""


def is_onnx(source: str) -> bool:
    """Return True for the path of an ONNX file, which may be missing."""
    return Path(source).suffix.lower() == ".onnx" and not (Path(source) / "config.json").is_file()


@lru_cache(maxsize=4)
def read_onnx(source: str, dims: str | None = None) -> OnnxModel:
    """Return the model of an ONNX file, read once by a command. dims: the text of --dims. Raises UsageError, and what `from_onnx`
    raises."""
    with phase(IMPORT):
        from tensor_graphs.frontends.onnx.importer import from_onnx

    return from_onnx(source, dims=ranges(dims))


def ranges(text: str | None) -> dict[str, int | tuple[int, int]]:
    """Return `n=8,p=1..64` as a size or a range by name. Raises UsageError for a part that is neither."""
    out: dict[str, int | tuple[int, int]] = {}
    for part in [] if text is None else text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        low, dots, high = value.partition("..")
        if not name or name in out or not low.isdecimal() or (dots and not (high.isdecimal() and int(low) <= int(high))):
            raise UsageError(f"--dims: {part!r} is no size and no range of a dim\n  fix: each dim once, like batch=8,seq=1..64")
        out[name] = (int(low), int(high)) if dots else int(low)
    return out


def read_graph(source: str, dims: str | None = None) -> Graph:
    """Return the graph of a `.tg` or ONNX file. Raises NotPossible, FolderError (a file of another kind) or TextError."""
    from tensor_graphs.cli.importing import COMPOSITES
    from tensor_graphs.frontends.huggingface.folder import refuse_foreign
    from tensor_graphs.language.text import parse_graph
    from tensor_graphs.regular_file import read_text

    if "\0" in source:
        raise NotPossible(f"{source!r} names no file; a .tg file is needed here\n  fix: {A_GRAPH}")
    path = Path(source)
    if is_onnx(source):
        return read_onnx(source, dims).graph
    refuse_foreign(path)
    if path.suffix == ".py" and path.is_file():
        raise NotPossible(f"{source} is a Python file; a .tg file or a model is needed here\n"
                          f"  fix: --import {source}, and the graph or the model whose kernels are meant")
    if path.is_dir():
        raise NotPossible(f"{source} is a folder; a .tg file is needed here\n  fix: {A_GRAPH}")
    try:
        text = read_text(path, MOST_TEXT, pipes=True)
    except OSError as e:
        near = _near_files(path) if isinstance(e, FileNotFoundError) else []
        fix = f"did you mean {' or '.join(near)}?" if near else A_GRAPH
        raise NotPossible(f"{source} cannot be read: {e.strerror}\n  fix: {fix}") from None
    except UnicodeDecodeError as e:
        raise NotPossible(f"{source} is not UTF-8 text (byte {e.start}); a .tg file is needed here\n  fix: {A_GRAPH}") from None
    return parse_graph(text, filename=source, ops=COMPOSITES)


def _near_files(path: Path) -> list[str]:
    """Return graphs in a missing file's folder that have similar names."""
    try:
        return [str(path.with_name(name)) for name in close_to(path.name, [f.name for f in path.parent.glob("*.tg")])]
    except OSError:
        return []


def check_new(file: Path, force: bool) -> None:
    """Raise NotPossible if the file to write exists, unless it may be replaced."""
    if file.is_dir():
        raise NotPossible(f"{file} is a folder, and a file is to be written\n  fix: a file in it")
    if file.exists() and not force:
        raise NotPossible(f"{file} is there already\n  fix: --force replaces it")


def write_file(file: Path, text: str, option: str) -> None:
    """Write the file of an option. Raises NotPossible."""
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as e:
        raise NotPossible(f"{option} {file} cannot be written: {e.strerror}\n  fix: another file") from None


def _in_json(value: Any) -> Any:
    """Return the value with floats that JSON cannot represent as strings: "Infinity", "-Infinity", "NaN"."""
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value)
    if isinstance(value, Mapping):
        return {key: _in_json(item) for key, item in value.items()}
    return [_in_json(item) for item in value] if isinstance(value, (list, tuple)) else value


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(_in_json(value), indent=1, default=str, allow_nan=False) + "\n")


def print_line(value: Any) -> None:
    """Print a JSON object on one line, and flush."""
    sys.stdout.write(json.dumps(_in_json(value), default=str, allow_nan=False) + "\n")
    sys.stdout.flush()


def console() -> Console:
    """Return a console on standard error, for progress and notes."""
    with phase(IMPORT):
        from rich.console import Console

    return Console(stderr=True, highlight=False)


def print_summary(summary: PlanSummary) -> None:
    """Print a table of a plan's most expensive steps, the time of the other steps, and why the path was chosen."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from tensor_graphs.paths.fit_terminal import duration

    table = Table(title=summary.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("step", max_width=42)            # the one column that wraps where the terminal is narrow
    table.add_column("kernel", no_wrap=True)
    for name in ("calls", "time", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("basis", "error", "next best"):
        table.add_column(name, no_wrap=True)
    for s in summary.steps:
        table.add_row(s.what, s.kernel, str(s.calls), duration(s.seconds), f"{s.share:.0%}",
                      "measured" if s.measured else "estimate", "unknown" if s.error is None else f"{s.error:.1e}", s.rival)
    out = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else SCREEN_COLUMNS)
    out.print(table)
    if summary.rest:
        out.print(summary.rest)
    out.print(f"Why this path: {summary.why}")


def note(text: str) -> None:
    """Print a note on standard error about something that was done differently than the user may expect."""
    print(f"note: {text}", file=sys.stderr)


@contextmanager
def progress(what: str, quiet: bool, total: int | None = None) -> Iterator[Callable[[int, int, str], None]]:
    """Context manager: a bar on standard error, hidden off a terminal or when quiet. Yields `update(done, total, text)`."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    shown = console()
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=shown, disable=quiet or not shown.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda done, total, text: bar.update(task, completed=done, total=total, description=text)


@contextmanager
def status(text: str, quiet: bool) -> Iterator[Any]:
    """Context manager: a status line on standard error, hidden off a terminal or when quiet. Yields `update(text)`."""
    shown = None if quiet else console()        # else what draws is not imported
    if shown is None or not shown.is_terminal:
        yield lambda text: None
        return
    with shown.status(text) as s:
        yield lambda t: s.update(t[: shown.width - 4])
