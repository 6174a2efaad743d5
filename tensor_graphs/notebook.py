"""notebook: values that a notebook shows as a picture. Lower rooms inherit `Pictured`; the package says which function draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

DRAWING: list[Callable[[Any], str]] = []
"""The function that returns HTML of a value (views/in_notebooks.py), once the package has been imported."""


class Pictured:
    """A value that Jupyter, and what follows its protocol, shows as a picture."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return DRAWING[0](self)
