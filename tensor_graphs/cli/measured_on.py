"""measured_on: the weights and inputs on which the error for --tolerance is measured: a model's own, or tokens of a text file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensor_graphs.cli import option_groups, options
from tensor_graphs.cli.graphs import is_model
from tensor_graphs.phase_times import IMPORT, phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensor_graphs.choice.accuracy_inputs import Inputs
    from tensor_graphs.frontends.gguf.file_types import TypeChoice
    from tensor_graphs.frontends.huggingface.load import LoadedModel
    from tensor_graphs.records.database import Database

MOST_PIECES, MOST_CHARACTERS = 8, 1 << 16
"""most pieces of a text that are used, each as one draw; most characters of a file that are read"""

CALIBRATION_PIECES, OWN_PIECES = 64, 8
"""most pieces of a text, and pieces of a model's own text, from which activations are read"""

NO_TOLERANCE = "--text is a text on which --tolerance is measured\n  fix: --tolerance ACCURACY, or no --text"


def measured_on(source: str, choice: option_groups.GraphOptions, database: Database, *, asked: bool = False,
                inputs: str = "inputs") -> dict[str, Any]:
    """Return the arguments `weights` and `inputs` of `compile_graph`: a model's, for measuring the error. Return {} without a
    tolerance and for a source without weights. asked: True if a plan or another option may have a tolerance. inputs: name of the
    argument for the inputs. Raises UsageError and NotPossible for a --text that cannot be used, and what `load_model` raises."""
    if choice.tolerance is None and not asked:
        if choice.text is not None:
            raise options.UsageError(NO_TOLERANCE)
        return {}
    if not is_model(source):
        if choice.text is not None:
            raise options.NotPossible(f"{source} is no model folder, so no tokenizer reads --text\n  fix: leave it out")
        return {"weights": options.read_onnx(source, choice.dims).weights} if options.is_onnx(source) else {}
    with phase(IMPORT):
        from tensor_graphs.devices.safetensors import WeightsError
        from tensor_graphs.frontends.huggingface.load import load_model

    try:
        model = load_model(source, dtype=choice.dtype, activations=choice.activations, max_positions=choice.max_positions)
    except WeightsError as error:
        if choice.text is not None:
            raise
        options.note(f"the error is measured on random weights and inputs: {str(error).partition(chr(10))[0]}")
        return {}
    backends = options.given_backends(choice.backends)
    return {"weights": model.weights, inputs: inputs_of(model, choice.text, database, backends)}


def inputs_of(model: LoadedModel, text: str | None, database: Database | str | None, backends: tuple[str, ...] | None) -> Inputs:
    """Return the inputs of error draws: pieces of the file `text`; without a file the model's own text, or None (random inputs) for
    a model that writes none. Raises NotPossible for a file that cannot be used."""
    if text is not None:
        return pieces(model, text)
    if model.samples is None or model.random_seed is not None:       # texts of random weights are as random as drawn ones
        return None
    model.samples.database, model.samples.backends = database, backends
    return model.samples


def calibration_of(model: LoadedModel, text: str | None, database: Database | str | None,
                   progress: Callable[[str], None]) -> TypeChoice:
    """Return the choice of types for a model's GGUF file, from the file `text` or the model's own text. Raises NotPossible."""
    with phase(IMPORT):
        from tensor_graphs.frontends.gguf.file_types import TypeChoice

    if text is not None:
        return TypeChoice(model, pieces(model, text, CALIBRATION_PIECES, "--calibration"), progress)
    inputs = inputs_of(model, None, database, None)
    if not callable(inputs):
        raise options.NotPossible(f"{model.name} writes no text from which types could be chosen\n  fix: --calibration FILE")
    progress("writing text")
    return TypeChoice(model, [inputs(seed) for seed in range(OWN_PIECES)], progress)


def pieces(model: LoadedModel, file: str, most: int = MOST_PIECES, option: str = "--text") -> list[dict[str, Any]]:
    """Return up to `most` consecutive pieces of a text file's tokens as inputs. Each is as long as an error draw, with the
    special tokens that the tokenizer puts around a text. Raises NotPossible for a file that is not UTF-8 text, or too short for one
    piece."""
    import numpy as np

    from tensor_graphs.frontends.text.tokenizer import TOKENIZER_FILES
    from tensor_graphs.measure.error_draws import ROWS, STEPS
    from tensor_graphs.serving.generate import check_ids

    if model.tokenizer is None:
        raise options.NotPossible(f"{model.name} has no tokenizer ({TOKENIZER_FILES}), so {option} cannot be read\n"
                                  "  fix: leave it out, and the error is measured on the model's own text")
    text = options.text_of(option, file, "a text file in UTF-8")[:MOST_CHARACTERS]
    ids = model.tokenizer.encode(text, special_tokens=False)
    start, end = ends(model.tokenizer.encode(text[:64]), model.tokenizer.encode(text[:64], special_tokens=False))
    size = min(ROWS + STEPS, model.max_positions) - len(start) - len(end)
    if len(ids) < size:
        raise options.NotPossible(f"{option} {file} has {len(ids)} tokens, and one draw takes {size}\n  fix: a longer text")
    check_ids(ids, model.facts.vocabulary)
    firsts = range(0, len(ids) - size + 1, size)[:most]
    return [{"ids": np.array([*start, *ids[first:first + size], *end], np.int32)} for first in firsts]


def ends(ids: list[int], inner: list[int]) -> tuple[list[int], list[int]]:
    """Return the special tokens before and after a text. ids: all its tokens; inner: its tokens without the special ones.

    >>> ends([2, 7, 8, 1], [7, 8])
    ([2], [1])
    """
    start = next((i for i in range(len(ids) - len(inner) + 1) if ids[i:i + len(inner)] == inner), 0)
    return ids[:start], ids[start + len(inner):]
