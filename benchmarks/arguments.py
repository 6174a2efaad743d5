"""arguments: what benchmarks take on their command lines, refused before the work starts where it is nothing."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def at_least(smallest: int) -> type[int]:
    """A type for argparse: a whole number, this or more."""
    def number(text: str) -> int:
        value = int(text)                                           # a ValueError is argparse's to tell
        if value < smallest:
            raise argparse.ArgumentTypeError(f"{value} is less than {smallest}")
        return value

    number.__name__ = "whole number"                                # what argparse calls it in "invalid … value"
    return number  # type: ignore[return-value]


def new_file(text: str) -> Path:
    """A type for argparse: where a file can be written."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is {'a folder' if path.is_dir() else 'in no folder that there is'}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text} cannot be written")
    return path
