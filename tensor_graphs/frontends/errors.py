"""errors: what can be wrong with a file or a request from outside; each message names the file, the thing in it and the
fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

from tensor_graphs.errors import TensorGraphsError


class FrontendError(TensorGraphsError):
    """A folder, a file or an argument that cannot be read as what it should be.

    The text is `Kind: what is wrong`, then the file and the fix on lines of their own.
    """

    def __init__(self, message: str, *, file: str | Path | None = None, fix: str | None = None) -> None:
        self.file = None if file is None else Path(file)
        text = f"{type(self).__name__}: {message}"
        if file is not None:
            text += f"\n  file: {file}"
        if fix:
            text += f"\n  fix: {fix}"
        super().__init__(text)


class WeightsError(FrontendError):
    """A weights file that is damaged or missing, or a tensor that is not in it as asked for."""


class FolderError(FrontendError):
    """A model folder that is missing, or a file in it that is missing or unreadable."""


class ConfigError(FrontendError):
    """A configuration that lacks a value, holds one of the wrong kind, or asks for something that is not supported."""


class TokenizerError(FrontendError):
    """A tokenizer or a chat template that is missing, unreadable or refuses its input."""


class SamplingError(FrontendError):
    """Sampling settings out of range, or logits from which nothing can be drawn."""


def listed(names: Iterable[str], most: int = 8) -> str:
    """The first `most` names in order, and how many more there are: `a, b, c, … (12 more)`."""
    ordered = sorted(names)
    more = len(ordered) - most
    return ", ".join(ordered[:most]) + (f", … ({more} more)" if more > 0 else "")


def close_to(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """Up to `most` of `known` that were probably meant by `name`: those that end alike (a lost prefix), then those
    spelt alike."""
    known = sorted(known)
    ends_alike = [k for k in known if k.endswith("." + name) or name.endswith("." + k)]
    return list(dict.fromkeys(ends_alike + difflib.get_close_matches(name, known, n=most, cutoff=0.75)))[:most]
