"""in_notebooks: HTML of a graph, a plan or a front: its picture, and below it the text that `print` shows."""

from __future__ import annotations

from html import escape
from typing import Any

from tensor_graphs.choice.measured_front import Front
from tensor_graphs.language.graph import Graph
from tensor_graphs.paths.plan import Plan
from tensor_graphs.views.diagram import of_graph, of_plan
from tensor_graphs.views.pareto import picture

WIDEST = '<div style="overflow:auto;max-height:75vh">{}</div>'
"""A frame that scrolls: pictures may be larger than a window."""


def html_of(value: Any) -> str:
    """Return a value as HTML."""
    if isinstance(value, Graph):
        return WIDEST.format(of_graph(value, "").svg())
    if isinstance(value, Plan):
        return WIDEST.format(of_plan(value, {}, "").svg()) + f"<pre>{escape(str(value))}</pre>"
    if isinstance(value, Front):
        return WIDEST.format(picture(value, "", "error")) + f"<pre>{escape(str(value))}</pre>"
    return f"<pre>{escape(repr(value))}</pre>"
