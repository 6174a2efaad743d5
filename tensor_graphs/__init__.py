"""tensor_graphs: say the math once; run the fastest path that is accurate enough — measured, recorded, explained.

    import tensor_graphs as tg

    x, w = tg.input("x", (tg.dim("n", 1, 4096), 640)), tg.parameter("w", (256, 640), tg.bf16)
    g = tg.graph(tg.softmax(tg.linear(x, w)))

This module re-exports the public names. In: Python calls.  Out: graphs, and from `tg.compile` a plan to run. The
subpackages ("rooms"), in data-flow order: language, meaning, proof, devices, kernels, codegen, records, costs, rewrites,
paths, runtime, measure, tuning, choice, views, models, frontends, serving, training, studio, cli. Each has a docstring.

Only the language is imported here (`import tensor_graphs` takes ≤ 0.3 s); the names in LAZY load their rooms when they
are first used. Some names shadow Python's built-ins (`input`, `sum`, `max`, …): write `import tensor_graphs as tg`, and never
`from tensor_graphs import *`.
"""

from __future__ import annotations

import importlib
import sys as _sys
from types import FunctionType as _FunctionType
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tensor_graphs import blas_thread_sleep as _blas_sleep  # noqa: F401 - before numpy is imported
from tensor_graphs import interrupted as _interrupted  # noqa: F401 - first: Ctrl-C while the command imports the rest
from tensor_graphs.errors import TensorGraphsError as TensorGraphsError
from tensor_graphs.errors import no_attribute as _no_attribute
from tensor_graphs.language import operators as _operators  # noqa: F401 - puts operators on nodes, writes on states
from tensor_graphs.language.atomic import *  # noqa: F403
from tensor_graphs.language.composite import RULE_CHECKS as _RULE_CHECKS
from tensor_graphs.language.composite import CompositeOp as CompositeOp
from tensor_graphs.language.composite import composite as composite
from tensor_graphs.language.composites import *  # noqa: F403 - its page lists them, and this is no second list
from tensor_graphs.language.dims import Dim as Dim
from tensor_graphs.language.dims import Expr as Expr
from tensor_graphs.language.dims import dim as dim
from tensor_graphs.language.dims import dim_max as dim_max
from tensor_graphs.language.dims import dim_min as dim_min
from tensor_graphs.language.dtypes import *  # noqa: F403
from tensor_graphs.language.explain_call_errors import worded as _worded
from tensor_graphs.language.graph import Graph as Graph
from tensor_graphs.language.graph import graph as graph
from tensor_graphs.language.leaves import State as State
from tensor_graphs.language.leaves import constant as constant
from tensor_graphs.language.leaves import copy_to as copy_to
from tensor_graphs.language.leaves import input as input
from tensor_graphs.language.leaves import parameter as parameter
from tensor_graphs.language.leaves import state as state
from tensor_graphs.language.node import Node as Node
from tensor_graphs.language.node import TensorType as TensorType
from tensor_graphs.notebook import DRAWING as _DRAWING

max, min = reduce_max, reduce_min  # noqa: F405 - over axes, as sum; element by element: maximum, minimum

_same: dict[object, object] = {}
for _name, _value in list(globals().items()):           # ops and leaves: the error for a wrong argument has a fix
    if isinstance(_value, _FunctionType) and _value.__module__.startswith("tensor_graphs.language."):
        _wrapped = _same.get(_value) or _worded(_value)
        _same[_value] = globals()[_name] = _wrapped
        _home, _called = vars(_sys.modules[_value.__module__]), _value.__name__
        if _home.get(_called) is _value:                            # pickled by that name
            _home[_called] = _wrapped
    elif isinstance(_value, ModuleType) and _value.__name__.startswith("tensor_graphs.language."):
        del globals()[_name]                            # a file of the library, which came with its ops

if TYPE_CHECKING:
    from tensor_graphs.choice.checked_bind import AccuracyError as AccuracyError
    from tensor_graphs.choice.checked_bind import bind as bind
    from tensor_graphs.choice.compile import compile_graph
    from tensor_graphs.choice.measured_front import pareto as pareto
    from tensor_graphs.choice.path_listing import list_paths as list_paths
    from tensor_graphs.choice.profile_graph import profile_graph
    from tensor_graphs.frontends.huggingface.load import load_model as load_model
    from tensor_graphs.frontends.onnx.importer import from_onnx as from_onnx
    from tensor_graphs.frontends.torch.export import from_torch as from_torch
    from tensor_graphs.kernels.c.c_kernel import c_kernel as c_kernel
    from tensor_graphs.kernels.cuda.cuda_kernel import cuda_kernel as cuda_kernel
    from tensor_graphs.kernels.kernel_decorator import host_kernel
    from tensor_graphs.language.autodiff import grad as grad
    from tensor_graphs.language.autodiff import vjp as vjp
    from tensor_graphs.meaning import accuracy as accuracy
    from tensor_graphs.meaning.interpreter import interpret as interpret
    from tensor_graphs.proof.equality import equal as equal
    from tensor_graphs.rewrites.admission import user_rule
    from tensor_graphs.runtime.arrays import device_array as device_array
    from tensor_graphs.runtime.device_array import DeviceArray as DeviceArray
    from tensor_graphs.serving.conversation import Conversation as Conversation
    from tensor_graphs.serving.generate import generate as generate
    from tensor_graphs.serving.generate import stream as stream
    from tensor_graphs.training import losses as losses
    from tensor_graphs.training import optim as optim
    from tensor_graphs.training.batches import Batches as Batches
    from tensor_graphs.training.lora import lora as lora
    from tensor_graphs.training.step import dropout as dropout
    from tensor_graphs.training.text import next_token as next_token
    from tensor_graphs.training.trainer import Trainer as Trainer
    from tensor_graphs.views.explain import explain as explain

    compile, kernel, profile, rule = compile_graph, host_kernel, profile_graph, user_rule

LAZY: dict[str, tuple[str, str]] = {
    "AccuracyError": ("tensor_graphs.choice.checked_bind", "AccuracyError"),
    "Conversation": ("tensor_graphs.serving.conversation", "Conversation"),
    "Batches": ("tensor_graphs.training.batches", "Batches"),
    "Trainer": ("tensor_graphs.training.trainer", "Trainer"),
    "DeviceArray": ("tensor_graphs.runtime.device_array", "DeviceArray"),
    "accuracy": ("tensor_graphs.meaning.accuracy", ""),
    "bind": ("tensor_graphs.choice.checked_bind", "bind"),
    "c_kernel": ("tensor_graphs.kernels.c.c_kernel", "c_kernel"),
    "compile": ("tensor_graphs.choice.compile", "compile_graph"),
    "cuda_kernel": ("tensor_graphs.kernels.cuda.cuda_kernel", "cuda_kernel"),
    "device_array": ("tensor_graphs.runtime.arrays", "device_array"),
    "dropout": ("tensor_graphs.training.step", "dropout"),
    "equal": ("tensor_graphs.proof.equality", "equal"),
    "explain": ("tensor_graphs.views.explain", "explain"),
    "from_onnx": ("tensor_graphs.frontends.onnx.importer", "from_onnx"),
    "from_torch": ("tensor_graphs.frontends.torch.export", "from_torch"),
    "generate": ("tensor_graphs.serving.generate", "generate"),
    "grad": ("tensor_graphs.language.autodiff", "grad"),
    "interpret": ("tensor_graphs.meaning.interpreter", "interpret"),
    "kernel": ("tensor_graphs.kernels.kernel_decorator", "host_kernel"),
    "list_paths": ("tensor_graphs.choice.path_listing", "list_paths"),
    "load_model": ("tensor_graphs.frontends.huggingface.load", "load_model"),
    "lora": ("tensor_graphs.training.lora", "lora"),
    "losses": ("tensor_graphs.training.losses", ""),
    "next_token": ("tensor_graphs.training.text", "next_token"),
    "optim": ("tensor_graphs.training.optim", ""),
    "rule": ("tensor_graphs.rewrites.admission", "user_rule"),
    "pareto": ("tensor_graphs.choice.measured_front", "pareto"),
    "profile": ("tensor_graphs.choice.profile_graph", "profile_graph"),
    "vjp": ("tensor_graphs.language.autodiff", "vjp"),
    "stream": ("tensor_graphs.serving.generate", "stream"),
}
"""Names that are loaded when they are first used: name -> (module, its name there; "" for the module itself)."""

__all__ = sorted(  # noqa: PLE0605 - what is imported above, and no second list of it
    {name for name, value in globals().items() if not name.startswith("_") and not isinstance(value, ModuleType)}
    - {"annotations", "importlib", "Any", "LAZY", "ModuleType", "TYPE_CHECKING"} | set(LAZY))


def _rule_differs(*rule: Any) -> str | None:
    """Return how a user's gradient rule differs from the definition's gradient. The comparison is imported at the first call."""
    from tensor_graphs.meaning.gradient_rule import rule_differs

    return rule_differs(*rule)


_RULE_CHECKS.append(_rule_differs)


def _drawn(value: Any) -> str:
    """Return a value as HTML, for notebooks. Views are imported at the first call."""
    from tensor_graphs.views.in_notebooks import html_of

    return html_of(value)


_DRAWING.append(_drawn)


def __getattr__(name: str) -> Any:
    if name not in LAZY:
        from tensor_graphs.language.foreign_names import function_meant

        raise _no_attribute("module 'tensor_graphs'", name, __all__, function_meant(name), "tg.")
    module, there = LAZY[name]
    home = importlib.import_module(module)
    value = getattr(home, there) if there else home
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names. Subpackages and Python's own attributes can be accessed, but are not listed."""
    return list(__all__)
