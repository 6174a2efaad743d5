"""aten: ATen ops as rows of a table: name of an overload -> function that builds its nodes.

    ROWS["add.Tensor"](call, x, y, alpha=2)

A row is called with an AtenCall (the type that torch states for the result, the common dtype of the first operands), then with the
arguments of the overload: tensors are nodes, sizes are dims. So no row repeats torch's rules of promotion: it converts its operands
to the dtype that torch states. What fx.py gets back must have torch's shape and dtype, or it is not used.
Read first: table.py. A further op is a row in the file of its subject, or a name in decomposed.py.
"""

from tensor_graphs.frontends.torch.aten import (  # noqa: F401 - each adds its rows
    elementwise,
    normalisation,
    places,
    products,
    reductions,
    shapes,
    sources,
    windows,
)
