"""input_descriptors: describes the values of a workload's input: random, one number, or a tensor of a safetensors file.

The form is that of FlashInfer-Trace's workloads: {"type": "random"}, {"type": "scalar", "value": 3}, {"type": "safetensors",
"path": "model.safetensors", "tensor_key": "norm.weight"}. A workload stores descriptors; values are generated or read on demand."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tensor_graphs.devices.safetensors import Weights, open_weights
from tensor_graphs.errors import FileError, TensorGraphsError
from tensor_graphs.language.node import TensorType
from tensor_graphs.measure.isolation.memory_guards import BIG_BYTES

NUMBERS = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}
"""strings by which FlashInfer-Trace represents numbers that JSON lacks"""

FORMS = "random, a number, or FILE.safetensors:TENSOR"


class InputError(TensorGraphsError):
    """Invalid description of an input, or described values that do not fit the input. The message names the fix."""


@dataclass(frozen=True)
class Descriptor:
    """Source of an input's values. value: number of a scalar; path (absolute) and tensor_key: location of a safetensors tensor."""

    type: Literal["random", "scalar", "safetensors"]
    value: bool | int | float | None = None
    path: str = ""
    tensor_key: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the descriptor as a dict in FlashInfer-Trace's form; a number that JSON lacks becomes a string."""
        match self.type:
            case "scalar":
                return {"type": self.type, "value": _json_number(self.value)}
            case "safetensors":
                return {"type": self.type, "path": self.path, "tensor_key": self.tensor_key}
        return {"type": self.type}

    def __str__(self) -> str:
        return {"random": "random", "scalar": str(self.value), "safetensors": f"{self.path}:{self.tensor_key}"}[self.type]


RANDOM = Descriptor("random")

Given = tuple[tuple[str, Descriptor], ...]
"""(input, source of its values), ordered by name"""


def read_descriptor(name: str, description: str | Mapping[str, Any] | Descriptor) -> Descriptor:
    """Return the descriptor for a JSON form or a string by a user: `random`, `0.5`, `model.safetensors:norm.weight`. name: the
    input's, for messages. Paths are relative to this process's current folder. Raises InputError."""
    if isinstance(description, Descriptor):
        return description
    if isinstance(description, str):
        return _from_words(name, description)
    if isinstance(description, int | float):
        return Descriptor("scalar", description)
    match dict(description) if isinstance(description, Mapping) else description:
        case {"type": "random"}:
            return RANDOM
        case {"type": "scalar", "value": bool() | int() | float() as value}:
            return Descriptor("scalar", value)
        case {"type": "scalar", "value": str(text)} if text in NUMBERS:
            return Descriptor("scalar", NUMBERS[text])
        case {"type": "safetensors", "path": str(path), "tensor_key": str(key)} if path and key:
            return Descriptor("safetensors", path=os.path.abspath(path), tensor_key=key)
    raise InputError(f"input {name!r}: {json.dumps(description, default=str)[:200]} describes no values\n"
                     '  fix: {"type": "random"}, {"type": "scalar", "value": 3} or '
                     '{"type": "safetensors", "path": …, "tensor_key": …}')


def _from_words(name: str, text: str) -> Descriptor:
    if text == "random":
        return RANDOM
    head, mark, key = text.partition(".safetensors:")
    path = f"{head}.safetensors" if mark else ""
    if not mark:
        try:
            return Descriptor("scalar", int(text) if text.lstrip("+-").isdecimal() else float(text))
        except ValueError:
            path, _, key = text.rpartition(":")                     # a folder, or an index of several files
    if not path or not key:
        raise InputError(f"input {name!r}: {text!r} says no values\n  fix: {FORMS}")
    return Descriptor("safetensors", path=os.path.abspath(path), tensor_key=key)


def given_of(inputs: Sequence[Mapping[str, Any]]) -> Given:
    """Return the descriptors of a stored workload's inputs whose values are not random."""
    named = [(str(entry["name"]), entry) for entry in inputs if "name" in entry and "type" in entry]
    return tuple((name, descriptor) for name, entry in named if (descriptor := read_descriptor(name, entry)) != RANDOM)


def check(name: str, descriptor: Descriptor, type: TensorType) -> None:
    """Raise InputError unless the described values fit an input of this type (with known sizes). Reads no values."""
    match descriptor.type:
        case "scalar":
            _scalar(name, descriptor, type)
        case "safetensors":
            _tensor(name, descriptor, type)


def values(name: str, descriptor: Descriptor, type: TensorType) -> np.ndarray | None:
    """Return the described values for an input of this type; None for random values. A large tensor shares its file's memory and is
    read-only. Raises InputError."""
    match descriptor.type:
        case "scalar":
            return _scalar(name, descriptor, type)
        case "safetensors":
            array = _tensor(name, descriptor, type).array(descriptor.tensor_key)
            return array if array.nbytes > BIG_BYTES else array.copy()
    return None


def _scalar(name: str, descriptor: Descriptor, type: TensorType) -> np.ndarray:
    value = descriptor.value
    assert value is not None
    if int(type.size()) != 1:
        raise InputError(f"input {name!r} is {type}, and one number is given: {value}\n  fix: a tensor of this shape, or random")
    if type.dtype.kind != "float":
        whole = isinstance(value, int) or (math.isfinite(value) and value == int(value))
        if not (whole and type.dtype.min <= value <= type.dtype.max):
            raise InputError(f"input {name!r} is {type}, which does not hold {value}\n"
                             f"  fix: a whole number from {type.dtype.min} to {type.dtype.max}")
    with np.errstate(over="ignore"):
        return np.full(type.shape, value, dtype=np.float64 if isinstance(value, float) else None).astype(type.dtype.numpy)


def _tensor(name: str, descriptor: Descriptor, type: TensorType) -> Weights:
    """Return the opened file. Raises InputError unless it has the tensor, with the shape and dtype of the input."""
    try:
        weights = _opened(descriptor.path, *_stamp(descriptor.path))
        dtype, shape = weights.info(descriptor.tensor_key)
    except FileError as e:
        text = str(e).removeprefix("WeightsError: ")
        raise InputError(f"input {name!r}: {text}" + ("" if "fix:" in text else f"\n  fix: {FORMS}")) from e
    wanted = tuple(int(s) for s in type.shape)
    where = f"  file: {weights.entry(descriptor.tensor_key).file}"
    if shape != wanted:
        fix = "a tensor of that shape" + ("; sizes of dims are set by --at, or at=" if len(shape) == len(wanted) else "")
        raise InputError(f"input {name!r} is {type}, and the tensor {descriptor.tensor_key!r} has the shape {list(shape)}\n"
                         f"{where}\n  fix: {fix}")
    if dtype != type.dtype.name:
        raise InputError(f"input {name!r} is {type}, and the tensor {descriptor.tensor_key!r} holds {dtype}\n{where}\n"
                         "  fix: declare the input in the tensor's dtype (a model: --dtype), or convert the file")
    return weights


def _stamp(path: str) -> tuple[int, int]:
    """Return size and time of change of a file, so that a rewritten file is opened again; (0, 0) if there is none."""
    try:
        status = Path(path).stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


@lru_cache(maxsize=8)
def _opened(path: str, size: int, changed: int) -> Weights:
    return open_weights(path)


def _json_number(value: bool | int | float | None) -> bool | int | float | str | None:
    if isinstance(value, float) and not math.isfinite(value):
        return next(text for text, number in NUMBERS.items() if number == value or (math.isnan(number) and math.isnan(value)))
    return value
