"""train_file: the TOML file of `tg train`: read, checked, and turned into a graph, arrays and an optimiser."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensor_graphs.cli import options
from tensor_graphs.errors import close_to, listed

if TYPE_CHECKING:
    import numpy as np

    from tensor_graphs.language.graph import Graph
    from tensor_graphs.training.batches import Batches

NAME = "train.toml"
KINDS: Mapping[str, tuple[Any, str]] = {
    "int": (int, "a whole number"), "float": ((int, float), "a number"), "str": (str, "a string"),
    "tuple[str, ...]": (list, "a list of strings"), "Mapping[str, Any]": (dict, "a table")}
CRITERIA = ("cross_entropy", "bce_with_logits", "mse")
LEAST = {"steps": 1, "batch": 1, "accumulate": 1, "length": 1, "seed": 0, "clip_norm": 0, "save_every": 1, "rate": 0, "warmup": 0}
"""setting -> its smallest value"""


@dataclass(frozen=True)
class TrainFile:
    """The settings, as written; paths are relative to the file's folder. docs/cli.md says what each is."""

    file: Path
    data: str
    steps: int
    graph: str = ""
    model: str = ""
    weights: str = ""
    out: str = "run"
    loss: str = "loss"
    output: str = ""
    target: str = "target"
    batch: int = 32
    accumulate: int = 1
    length: int = 64
    seed: int = 0
    clip_norm: float = 0.0
    save_every: int = 100
    frozen: tuple[str, ...] = ()
    optimiser: Mapping[str, Any] = field(default_factory=lambda: {"name": "adamw"})
    schedule: Mapping[str, Any] = field(default_factory=dict)
    lora: Mapping[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The folder of the checkpoint and the results."""
        return self.file.parent / self.out


def read(source: Path) -> TrainFile:
    """Return the settings of a file, or of train.toml in a folder. Raises NotPossible."""
    file = source / NAME if source.is_dir() else source
    fix = f"a TOML file with data, steps, and graph or model; or a folder with {NAME} (docs/cli.md)"
    try:
        settings = tomllib.loads(options.text_of("tg train:", str(file), fix))
    except tomllib.TOMLDecodeError as e:
        raise options.NotPossible(f"{file} is not TOML: {e}\n  fix: {fix}") from None
    allowed = {f.name: f for f in fields(TrainFile) if f.name != "file"}
    _check(str(file), settings, allowed)
    for name, value in settings.items():
        kinds, words = KINDS[str(allowed[name].type)]
        _check_value(str(file), name, value, kinds, words)
    missing = [name for name in ("data", "steps") if name not in settings]
    if missing or ("graph" in settings) == ("model" in settings):
        raise options.NotPossible(f"{file} has no {' and no '.join(missing) or 'one graph'}\n  fix: {fix}")
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()}
    return TrainFile(file, **values)


def _check(where: str, settings: Mapping[str, Any], allowed: Mapping[str, Any]) -> None:
    for name in settings:
        if name not in allowed:
            near = close_to(name, allowed)
            raise options.NotPossible(f"{where} has {name!r}, which is no setting\n"
                                      f"  fix: {f'did you mean {near[0]}?' if near else listed(allowed, 40)}")


def _check_value(where: str, name: str, value: Any, kinds: Any, words: str) -> None:
    least = LEAST.get(name)
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool) or (least is not None and value < least):
        raise options.NotPossible(f"{where}: {name} is {value!r}\n  fix: {words}{'' if least is None else f' of {least} or more'}")


def _check_like(where: str, settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise NotPossible for a setting that is not of its default's kind; numbers may be whole."""
    for name, value in settings.items():
        if isinstance(default := defaults.get(name), bool):
            _check_value(where, name, value, bool, "true or false")
        elif isinstance(default, tuple):
            fits = isinstance(value, tuple) and len(value) == len(default) and all(isinstance(v, (int, float)) for v in value)
            _check_value(where, name, value, tuple if fits else (), f"a list of {len(default)} numbers")
        elif isinstance(default, (int, float)):
            kinds = (int, "a whole number") if isinstance(default, int) else ((int, float), "a number")
            _check_value(where, name, value, *kinds)


def optimisers(run: TrainFile) -> Any:
    """Return the optimiser of each parameter. Raises NotPossible for one that does not exist, or a setting that it has not."""
    from tensor_graphs.training import optim

    settings = dict(run.optimiser)
    kind = _named("optimiser", settings.pop("name", "adamw"), optim.OPTIMISERS)
    schedule = dict(run.schedule)
    settings = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    _check("[optimiser]", settings, {f.name: f for f in fields(kind)})
    _check_like("[optimiser]", settings, {f.name: getattr(kind(), f.name) for f in fields(kind)})
    if schedule:
        settings["rate"] = _rate(run, schedule, settings.get("rate", kind().rate))
    adapters = {"*.lora_?": kind(**settings)} if run.lora else {}
    patterns = {**dict.fromkeys(run.frozen), **adapters}           # the first that fits counts
    patterns.setdefault("*", None if run.lora else kind(**settings))
    return patterns


def _rate(run: TrainFile, schedule: dict[str, Any], peak: float) -> Any:
    from tensor_graphs.training import optim

    kinds = {name: getattr(optim, name) for name in ("cosine", "exponential", "linear", "milestones", "one_cycle", "polynomial")}
    warm, name = schedule.pop("warmup", 0), schedule.pop("name", "")
    _check_value("[schedule]", "warmup", warm, int, "a whole number")
    rate: Any = peak
    if name:
        kind = _named("schedule", name, kinds)
        takes = inspect.signature(kind).parameters
        first = "start" if name == "linear" else "peak" if name == "one_cycle" else "rate"
        given_steps = {"steps": max(1, run.steps - warm)} if "steps" in takes else {}
        _check("[schedule]", schedule, takes)
        for setting, value in schedule.items():
            kinds_and_words = (list, "a list of whole numbers") if setting == "at" else ((int, float), "a number")
            _check_value("[schedule]", setting, value, *kinds_and_words)
        try:
            rate = kind(**{first: peak, **given_steps, **schedule})
        except TypeError as e:
            raise options.NotPossible(f"[schedule] {name}: {e}\n  fix: its settings are {', '.join(takes)}") from None
    return optim.warmup(rate, warm) if warm else rate


def _named(what: str, name: Any, kinds: Mapping[str, Any]) -> Any:
    if name not in kinds:
        raise options.NotPossible(f"[{what}] name is {name!r}\n  fix: one of {listed(kinds, 20)}")
    return kinds[name]


@dataclass(frozen=True)
class Task:
    """A graph with a loss, the first values of its parameters, and the data."""

    graph: Graph
    weights: Mapping[str, Any]
    batches: Batches
    rows: bool                             # False: one row of ids for each run, without the axis of a batch


def task_of(run: TrainFile) -> Task:
    """Return what is trained. Raises NotPossible for files that cannot be read or do not fit each other."""
    import numpy as np

    from tensor_graphs.training.batches import Batches
    from tensor_graphs.training.text import next_token, windows

    place = run.file.parent
    if run.model:
        from tensor_graphs.frontends.huggingface.load import load_model

        loaded = load_model(str(place / run.model), max_positions=run.length)
        graph, weights = next_token(loaded.graph), loaded.weights
        if loaded.tokenizer is None:
            raise options.NotPossible(f"{run.model} has no tokenizer\n  fix: save it into the folder")
        ids = loaded.tokenizer.encode(options.text_of("data", str(place / run.data), "a text file"))
        batches = Batches(windows(np.array(ids, np.int32), run.length), 1, run.seed)
    else:
        arrays = _arrays(place / run.data)
        graph = _with_loss(options.read_graph(str(place / run.graph)), run, arrays)
        if missing := [name for name in graph.inputs if name not in arrays]:
            raise options.NotPossible(f"{run.data} has no {listed(missing)}\n  fix: an array for each input of {run.graph}, "
                                      "with one row for each example")
        batches = Batches({name: arrays[name] for name in graph.inputs}, run.batch, run.seed)
        weights = _first(graph, place / run.weights if run.weights else None, run.seed)
    if run.lora:
        from tensor_graphs.training.lora import lora

        adapted = lora(graph, **run.lora)
        graph, weights = adapted.graph, {**{name: weights[name] for name in graph.parameters}, **adapted.adapters}
    return Task(graph, weights, batches, not run.model)


def _arrays(file: Path) -> dict[str, np.ndarray]:
    import numpy as np

    try:
        stored = np.load(file, allow_pickle=False)
        if isinstance(stored, np.ndarray):
            return {"x": stored}
        with stored:
            return {name: np.asarray(stored[name]) for name in stored.files}
    except Exception as e:                                # numpy, zipfile and zlib have many kinds for a damaged file
        raise options.NotPossible(f"data {file} cannot be read: {e or type(e).__name__}\n"
                                  "  fix: an .npz file, numpy.savez(FILE, x=…, target=…)") from None


def _with_loss(program: Graph, run: TrainFile, arrays: Mapping[str, np.ndarray]) -> Graph:
    """Return the graph with an output `loss`: its own, or a criterion of one of its outputs and the array of targets."""
    from tensor_graphs.language import leaves
    from tensor_graphs.language.graph import Graph
    from tensor_graphs.training import losses

    if run.loss in program.outputs:
        return Graph({"loss": program.outputs[run.loss]}, program.updates)
    criterion = _named("loss", run.loss, {name: getattr(losses, name) for name in CRITERIA})
    output = program.outputs.get(run.output or next(iter(program.outputs)))
    if output is None or run.target not in arrays:
        raise options.NotPossible(f"{run.file}: loss {run.loss} of output {run.output!r} and target {run.target!r}\n"
                                  f"  fix: outputs are {listed(program.outputs)}; arrays of {run.data} are {listed(arrays)}")
    classes = run.loss == "cross_entropy"
    target = leaves.input(run.target, output.shape[:-1] if classes else output.shape, str(arrays[run.target].dtype))
    return Graph({"loss": criterion(output, target)}, program.updates)


def _first(graph: Graph, file: Path | None, seed: int) -> dict[str, np.ndarray]:
    """Return first values: of a file, or N(0, 1/in) for matrices, 1 for vectors named weight, scale or gain, 0 for others."""
    import numpy as np

    if file is not None:
        from tensor_graphs.devices.safetensors import open_weights

        stored = open_weights(file)
        return {name: stored.array(name, tuple(map(int, p.shape))) for name, p in graph.parameters.items()}
    rng, values = np.random.default_rng(seed), {}
    for name, parameter in graph.parameters.items():
        shape = tuple(map(int, parameter.shape))
        ones = name.rpartition(".")[2] in ("weight", "scale", "gain")
        values[name] = (rng.normal(0, shape[-1] ** -0.5, shape) if len(shape) > 1 else np.full(shape, float(ones))).astype(
            parameter.dtype.numpy)
    return values
