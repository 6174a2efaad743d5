"""sizes: sizes of torch's symbolic shapes as dims: a SymInt's expression (sympy) becomes an expression of `tg.dim`s."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tensor_graphs.frontends.torch.functions import refuse
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim, Expr

LARGEST = (1 << 31) - 1
"""upper bound of a dim for which torch knows none: indices of 32 bits count up to it"""


def _power(base: Dim, exponent: Dim) -> Dim:
    return d.product([base] * exponent) if isinstance(exponent, int) and 0 <= exponent <= 4 else refuse("a power of sizes")


FUNCTIONS: Mapping[str, Callable[..., Dim]] = {
    "Add": lambda *xs: sum(xs[1:], xs[0]), "Mul": lambda *xs: d.product(xs), "Pow": _power, "PowByNatural": _power,
    "FloorDiv": lambda a, b: a // b, "CleanDiv": lambda a, b: a // b, "CeilDiv": lambda a, b: (a + b - 1) // b,
    "Mod": lambda a, b: a % b, "PythonMod": lambda a, b: a % b, "ModularIndexing": lambda a, b, m: (a // b) % m,
    "Max": d.dim_max, "Min": d.dim_min, "Identity": lambda a: a,
}  # fmt: skip
"""Name of a sympy function -> the same of dims. All operands are whole, and divisors are positive, as sizes of torch are."""


class TorchSizes:
    """The dims of one graph: each symbol of torch is a dim d0, d1, … in the order of first use, with torch's range for it.

    names: symbol -> name of its dim, in place of d0, d1, …
    """

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        self.names = dict(names or {})
        self.dims: dict[Any, Expr] = {}

    def of(self, size: Any) -> Dim:
        """Return an int, or a SymInt as an expression of dims. Raises OpaqueReference for a formula that dims do not have."""
        if isinstance(size, int):
            return size
        node = size.node
        return self._of(node.expr, node.shape_env)

    def shape(self, tensor: Any) -> tuple[Dim, ...]:
        """Return the shape of a (fake) tensor."""
        return tuple(self.of(size) for size in tensor.shape)

    def _of(self, expression: Any, shape_env: Any) -> Dim:
        if expression.is_Integer:
            return int(expression)
        if expression.is_Symbol:
            if expression not in self.dims:
                span = shape_env.var_to_range[expression]
                if span.lower < 0:
                    refuse("an integer that may be negative, and is no size")
                name = self.names.get(str(expression), f"d{len(self.dims)}")
                self.dims[expression] = d.dim(name, int(span.lower), int(min(span.upper, LARGEST)))
            return self.dims[expression]
        function = FUNCTIONS.get(type(expression).__name__)
        if function is None:
            refuse(f"a size of the form {type(expression).__name__}")
        return function(*(self._of(argument, shape_env) for argument in expression.args))
