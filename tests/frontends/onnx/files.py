"""files: small ONNX models, made with the onnx package's helpers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tensor_graphs as tg

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name: str, shape: Sequence[Any], dtype: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def model(nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], stored: Mapping[str, np.ndarray] | None = None,
          opset: int = 21, **more: Any) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(array, name) for name, array in (stored or {}).items()]
    graph = helper.make_graph(nodes, "small", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], **more)


def one(op: str, inputs: Mapping[str, np.ndarray], opset: int = 21, **attributes: Any) -> onnx.ModelProto:
    """A model of one node whose inputs are tensors like these; its output is y."""
    infos = [info(name, x.shape, helper.np_dtype_to_tensor_dtype(x.dtype)) for name, x in inputs.items()]
    node = helper.make_node(op, list(inputs), ["y"], name="the node", **attributes)
    return model([node], infos, [helper.make_empty_tensor_value_info("y")], opset=opset)


def run(proto: onnx.ModelProto, inputs: Mapping[str, np.ndarray], **how: Any) -> dict[str, np.ndarray]:
    """The outputs of an imported model, every value rounded as written."""
    imported = tg.from_onnx(proto, **how)
    outputs = tg.interpret(imported.graph, {imported.inputs[name]: x for name, x in inputs.items() if name in imported.inputs},
                           imported.weights, mode="as_written").outputs
    return {name: outputs[ours] for name, ours in imported.outputs.items()}


def perceptron(batch: Any = "batch") -> onnx.ModelProto:
    """relu(x · w1 + b1) · w2 with weights drawn from a seed."""
    rng = np.random.default_rng(0)
    weights = {"w1": rng.standard_normal((6, 5)), "b1": rng.standard_normal(5), "w2": rng.standard_normal((5, 3))}
    nodes = [helper.make_node("MatMul", ["x", "w1"], ["h"]), helper.make_node("Add", ["h", "b1"], ["a"]),
             helper.make_node("Relu", ["a"], ["r"]), helper.make_node("MatMul", ["r", "w2"], ["y"])]
    return model(nodes, [info("x", (batch, 6))], [info("y", (batch, 3))], {k: v.astype(np.float32) for k, v in weights.items()})
