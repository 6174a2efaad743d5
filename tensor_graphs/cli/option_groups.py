"""option_groups: options that several verbs share, declared once; a verb takes each group as one parameter."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

from tensor_graphs.cli import options
from tensor_graphs.phase_times import IMPORT, phase


@dataclasses.dataclass(frozen=True)
class Common:
    imports: options.Imports = None
    db: options.DatabaseAt = None
    json: options.Json = False

    def store(self, *, create: bool = True, pinned: bool = False) -> Any:
        """Return the database of --db (`options.database`)."""
        return options.database(self.db, create=create, pinned=pinned)


@dataclasses.dataclass(frozen=True)
class Dtypes:
    """Dtypes of a model's weights and of its other values."""

    dtype: options.WeightDtype = None
    activations: options.ActivationDtype = None


@dataclasses.dataclass(frozen=True)
class SourceOptions(Dtypes):
    """Options that say which graph a `FILE.tg|MODEL` is."""

    dims: options.OnnxDims = None


@dataclasses.dataclass(frozen=True)
class GraphOptions(SourceOptions):
    """Options of the verbs that choose paths for a `FILE.tg|MODEL`."""

    tolerance: options.GraphTolerance = None
    precision: options.PrecisionWords = None
    backends: options.Backends = None
    threads: options.Threads = None
    max_positions: options.MaxPositions = None
    text: options.TextFile = None

    def request(self) -> dict[str, Any]:
        """Return these options as arguments of `compile_graph`."""
        return {"tolerance": self.tolerance, "backends": options.given_backends(self.backends), "threads": self.threads,
                "precision": self.precision}


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """Options of the verbs that compile and run a model."""

    tolerance: options.GraphTolerance = None
    precision: options.PrecisionWords = None
    plan: options.PlanFile = None
    backends: options.Backends = None
    threads: options.Threads = None


@dataclasses.dataclass(frozen=True)
class SamplingOptions:
    temperature: options.Temperature = None
    top_k: options.TopK = 0
    top_p: options.TopP = 1.0
    min_p: options.MinP = 0.0
    repetition_penalty: options.RepetitionPenalty = 1.0
    seed: options.Seed = None
    stop: options.Stop = None

    def sampling(self) -> Any:
        """Return the options as a Sampling. A top k, top p, min p or seed means random draws, at temperature 1 unless another is
        given. Raises UsageError for a value out of range."""
        with phase(IMPORT):
            from tensor_graphs.frontends.errors import SamplingError
            from tensor_graphs.serving.sampling import Sampling

        draws = self.top_k != 0 or self.top_p != 1 or self.min_p != 0 or self.seed is not None
        try:
            return Sampling((1.0 if draws else 0.0) if self.temperature is None else self.temperature, self.top_k, self.top_p,
                            self.seed or 0, self.min_p, self.repetition_penalty)
        except SamplingError as e:
            raise options.UsageError(str(e)) from None

    def stop_texts(self) -> list[str]:
        """Return the values of --stop. Raises UsageError for an empty one."""
        if self.stop and not all(self.stop):
            raise options.UsageError("--stop '' is no text that could be generated\n  fix: --stop TEXT")
        return self.stop or []


@dataclasses.dataclass(frozen=True)
class DecoderOptions:
    """Options of `tg run` and `tg chat` for the cache and for the output."""

    max_positions: options.MaxPositions = None
    memory_limit: options.MemoryLimit = None
    text: options.TextFile = None
    imports: options.Imports = None
    db: options.DatabaseAt = None
    logprobs: options.Logprobs = False
    json: options.Json = False
    jsonl: options.JsonLines = False

    def document_printer(self) -> Callable[[Any], None] | None:
        """Return the function that prints the document of --json or --jsonl; None for plain output. Raises UsageError."""
        if self.json and self.jsonl:
            raise options.UsageError("--json and --jsonl are two forms of one document\n  fix: leave one of them out")
        if self.logprobs and not self.json and not self.jsonl:
            raise options.UsageError("--logprobs has its place in a JSON document\n  fix: --json or --jsonl")
        return options.print_json if self.json else options.print_line if self.jsonl else None


@dataclasses.dataclass(frozen=True)
class ServerLimits:
    """Limits of `tg serve` on its requests."""

    sequences: options.Sequences = 16
    invariant: options.Invariant = False
    most_waiting: options.MostWaiting = 64
    most_prompt: options.MostPrompt = None
    most_body: options.MostBody = 16 << 20
    timeout: options.AnswerTimeout = 600.0


@dataclasses.dataclass(frozen=True)
class GraphFiles:
    """The sizes and the files of `tg run FILE.onnx`."""

    dims: options.OnnxDims = None
    inputs: options.InputsFile = None
    out: options.OutputsFile = None


def spread(verb: Callable[..., None]) -> Callable[..., None]:
    """Return the verb with each group among its parameters replaced by parameters for the group's fields."""
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(verb, eval_str=True).parameters.values():
        parameter = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        if dataclasses.is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation
            parameters += [parameter.replace(name=field.name, default=field.default, annotation=field.type)
                           for field in dataclasses.fields(parameter.annotation)]
        else:
            parameters.append(parameter)

    @functools.wraps(verb)
    def spread_verb(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in dataclasses.fields(group)})
        verb(**values)

    spread_verb.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    spread_verb.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return spread_verb
