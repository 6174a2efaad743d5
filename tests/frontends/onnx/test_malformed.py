"""Damaged and hostile ONNX files: each is one error of one screen, soon, and without much memory."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tensor_graphs as tg
from benchmarks.mutated_onnx import mutants, why_wrong
from tensor_graphs.frontends.onnx import importer
from tensor_graphs.frontends.onnx.errors import OnnxError
from tests.frontends.onnx.files import INT64, info, model, one, perceptron

MOST_MEMORY = 64 << 20
"""bytes that an import of a small file may take"""


def changed(change: Callable[[Any], object]) -> onnx.ModelProto:
    proto = perceptron()
    change(proto.graph)
    return proto


def nested(depth: int, calls: int) -> onnx.ModelProto:
    """Functions f1, f2, … each of which calls the next one below `calls` times."""
    functions = []
    for i in range(depth):
        inner = [helper.make_node(f"f{i - 1}" if i else "Neg", ["a" if k == 0 else f"b{k - 1}"], [f"b{k}"],
                                  domain="mine" if i else "") for k in range(calls)]
        functions.append(helper.make_function("mine", f"f{i}", ["a"], [f"b{calls - 1}"], inner, [
            helper.make_opsetid("", 21), helper.make_opsetid("mine", 1)]))
    proto = model([helper.make_node(f"f{depth - 1}", ["x"], ["y"], domain="mine")], [info("x", (2,))], [info("y", (2,))],
                  functions=functions)
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    return proto


def endless() -> onnx.ModelProto:
    function = helper.make_function("mine", "f", ["a"], ["b"], [helper.make_node("f", ["a"], ["b"], domain="mine")],
                                    [helper.make_opsetid("mine", 1)])
    proto = model([helper.make_node("f", ["x"], ["y"], domain="mine")], [info("x", (2,))], [info("y", (2,))], functions=[function])
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    return proto


def huge(op: str, *sizes: int, shape: tuple[int, ...] = (1, 1, 4, 4), opset: int = 21,
         **attributes: Any) -> onnx.ModelProto:
    """An op whose operands, all but the first, are known numbers."""
    names = [f"k{i}" for i in range(len(sizes))]
    nodes = [helper.make_node(op, ["x", *names], ["y"], **attributes)]
    return model(nodes, [info("x", shape)], [helper.make_empty_tensor_value_info("y")],
                 {name: np.array(size) for name, size in zip(names, sizes, strict=True)}, opset=opset)


X = np.ones((1, 1, 4, 4), np.float32)
CASES: dict[str, Callable[[], onnx.ModelProto]] = {
    "no graph": onnx.ModelProto,
    "no opset": lambda: onnx.ModelProto(graph=perceptron().graph),
    "an opset of the future": lambda: one("Neg", {"x": X}, opset=99),
    "a cycle": lambda: changed(lambda g: g.node[0].input.__setitem__(0, "y")),
    "an unknown tensor": lambda: changed(lambda g: g.node[2].input.__setitem__(0, "nowhere")),
    "an output that nothing computes": lambda: changed(lambda g: setattr(g.output[0], "name", "nowhere")),
    "no outputs": lambda: changed(lambda g: g.ClearField("output")),
    "a negative size": lambda: changed(lambda g: g.initializer[0].dims.__setitem__(0, -6)),
    "a size of 2^40": lambda: changed(lambda g: g.initializer[0].dims.__setitem__(0, 1 << 40)),
    "sizes whose product is beyond 64 bits": lambda: changed(lambda g: g.initializer[0].dims.extend([1 << 62, 1 << 62])),
    "data that is too short": lambda: changed(lambda g: setattr(g.initializer[0], "raw_data", b"1234")),
    "an initialiser of another dtype": lambda: changed(lambda g: setattr(g.initializer[0], "data_type", TensorProto.INT32)),
    "an initialiser of no dtype": lambda: changed(lambda g: setattr(g.initializer[0], "data_type", 99)),
    "an initialiser of strings": lambda: changed(lambda g: setattr(g.initializer[0], "data_type", TensorProto.STRING)),
    "an input of another rank": lambda: changed(lambda g: g.input[0].type.tensor_type.shape.dim.add(dim_value=3)),
    "an input of no rank": lambda: changed(lambda g: g.input[0].type.tensor_type.ClearField("shape")),
    "an input of no type": lambda: changed(lambda g: g.input[0].ClearField("type")),
    "an input of complex numbers": lambda: changed(
        lambda g: setattr(g.input[0].type.tensor_type, "elem_type", TensorProto.COMPLEX64)),
    "an input of size 2^62, three times": lambda: changed(lambda g: g.input[0].type.tensor_type.shape.dim.extend(
        [g.input[0].type.tensor_type.shape.dim[1].__class__(dim_value=1 << 62)] * 3)),
    "a negative input size": lambda: changed(lambda g: setattr(g.input[0].type.tensor_type.shape.dim[1], "dim_value", -6)),
    "an unknown op": lambda: changed(lambda g: setattr(g.node[0], "op_type", "Nothing")),
    "an unknown domain": lambda: changed(lambda g: setattr(g.node[0], "domain", "com.nobody")),
    "too few operands": lambda: changed(lambda g: g.node[0].ClearField("input")),
    "too many operands": lambda: changed(lambda g: g.node[0].input.append("b1")),
    "too many outputs": lambda: changed(lambda g: g.node[0].output.append("more")),
    "an attribute of another kind": lambda: one("Transpose", {"x": X}, perm="abc"),
    "a permutation that is none": lambda: one("Transpose", {"x": X}, perm=[0, 0, 1, 2]),
    "an axis out of range": lambda: one("Softmax", {"x": X}, axis=9),
    "a tensor that is computed twice": lambda: changed(lambda g: g.node[1].output.__setitem__(0, "h")),
    "an axis of a known operand out of range": lambda: model(
        [helper.make_node("CumSum", ["x", "a"], ["y"])], [info("x", (2, 3))], [info("y", (2, 3))], {"a": np.array(5)}),
    "an axis that is named twice": lambda: model(
        [helper.make_node("Slice", ["x", "a", "b", "c"], ["y"])], [info("x", (6, 6))], [info("y", (None, 6))],
        {"a": np.array([1, 3]), "b": np.array([5, 6]), "c": np.array([0, -2])}),
    "an unknown attribute of an op that is a function": lambda: one("Selu", {"x": X}, spin=1),
    "an op of ours in a domain that is not": lambda: changed(lambda g: setattr(g.node[1], "domain", "com.nobody")),
    "an unknown attribute": lambda: one("Neg", {"x": X}, opset=21, spin=1),
    "a sparse initialiser": lambda: changed(lambda g: g.sparse_initializer.add()),
    "an output of another size": lambda: changed(lambda g: setattr(g.output[0].type.tensor_type.shape.dim[1], "dim_value", 4)),
    "an output of another rank": lambda: changed(lambda g: g.output[0].type.tensor_type.shape.dim.add(dim_value=1)),
    "an output of another dtype": lambda: changed(
        lambda g: setattr(g.output[0].type.tensor_type, "elem_type", TensorProto.DOUBLE)),
    "no kernel": lambda: one("MaxPool", {"x": X}),
    "a kernel larger than the tensor": lambda: one("MaxPool", {"x": X}, kernel_shape=[9, 9]),
    "a kernel of size 0": lambda: one("MaxPool", {"x": X}, kernel_shape=[0, 0]),
    "strides of 0": lambda: one("MaxPool", {"x": X}, kernel_shape=[2, 2], strides=[0, 0]),
    "a block of size 0": lambda: one("SpaceToDepth", {"x": X}, blocksize=0),
    "no groups": lambda: one("Conv", {"x": X, "w": X}, group=0),
    "an equation that is none": lambda: one("Einsum", {"x": X}, equation="->->"),
    "a cast to nothing": lambda: one("Cast", {"x": X}, to=77),
    "LRN of 2^40 channels": lambda: one("LRN", {"x": X}, size=1 << 40),
    "a split into 2^40 parts": lambda: huge("Split", num_outputs=1 << 40),
    "a DFT of length 2^30": lambda: huge("DFT", 1 << 30, axis=1, shape=(1, 4, 1), opset=17),
    "the 2^40 largest elements": lambda: huge("TopK", 1 << 40),
    "functions that call themselves": endless,
    "functions 60 deep": lambda: nested(60, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_a_malformed_model_is_one_error_that_says_what_to_do(name: str) -> None:
    proto = CASES[name]()
    tracemalloc.start()
    try:
        with pytest.raises(OnnxError) as e:
            tg.from_onnx(proto)
        memory = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "\n  fix: " in str(e.value) and len(str(e.value)) < 700, str(e.value)
    assert memory < MOST_MEMORY, f"{memory >> 20} MB"


REQUIRED = [(op.name, name) for op in onnx.defs.get_all_schemas() for name, attribute in op.attributes.items()
            if attribute.required and not op.domain and op.min_input == 1]


@pytest.mark.parametrize(("op", "attribute"), REQUIRED)
def test_an_attribute_that_the_schema_requires_is_required(op: str, attribute: str) -> None:
    others = {name: onnx.helper.get_attribute_value(a.default_value) for name, a in onnx.defs.get_schema(op).attributes.items()
              if a.default_value.name}
    proto = one(op, {"x": X}, opset=onnx.defs.onnx_opset_version(), **others)
    with pytest.raises(OnnxError, match=rf"the attribute \w+ of {op}, which the op requires, is missing in the node 'the node'"):
        tg.from_onnx(proto)


def test_a_declared_size_that_the_output_never_has_is_named() -> None:
    proto = one("Concat", {"a": X, "b": X}, axis=0)
    proto.graph.output[0].CopyFrom(info("y", (3, 1, 4, 4)))
    with pytest.raises(OnnxError, match=r"the output 'y' is f32\[2, 1, 4, 4\], and is declared as f32\[3, 1, 4, 4\]"):
        tg.from_onnx(proto)


def test_functions_that_call_each_other_8_times_each_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importer, "MOST_NODES", 2000)
    with pytest.raises(OnnxError, match=r"written out, are more than 2000 nodes"):
        tg.from_onnx(nested(8, 8))


@pytest.mark.parametrize("op", ["ConstantOfShape", "Expand", "Tile", "Range"])
def test_a_large_shape_takes_no_memory_while_the_graph_is_built(op: str) -> None:
    many = np.array([1, 1, 1 << 10, 1 << 10])
    proto = {"ConstantOfShape": lambda: model([helper.make_node("ConstantOfShape", ["s"], ["y"])], [], [info("y", many.tolist())],
                                              {"s": many}),
             "Expand": lambda: model([helper.make_node("Expand", ["x", "s"], ["y"])], [info("x", (1, 1, 1, 1))],
                                     [info("y", many.tolist())], {"s": many}),
             "Tile": lambda: model([helper.make_node("Tile", ["x", "s"], ["y"])], [info("x", (1, 1, 1, 1))],
                                   [info("y", many.tolist())], {"s": many}),
             "Range": lambda: model([helper.make_node("Range", ["a", "b", "c"], ["y"])], [], [info("y", (1 << 30,), INT64)],
                                    {"a": np.array(0), "b": np.array(1 << 30), "c": np.array(1)})}[op]()
    tracemalloc.start()
    tg.from_onnx(proto)
    memory = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert memory < MOST_MEMORY // 16


def test_files_with_faults_are_read_or_refused_with_one_error(tmp_path: Path) -> None:
    """A changed byte may leave a valid file; nothing else than our own errors may come out. benchmarks/ has 300 of them."""
    counts = Counter[str]()
    assert [why for name, data in mutants(40, 1) if (why := why_wrong(data, tmp_path, counts))] == []
    assert 40 > counts["OnnxError"] + counts["NotSupported"] >= 25, counts


def test_another_error_a_file_left_behind_and_memory_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = perceptron().SerializeToString()
    assert why_wrong(data, tmp_path, Counter()) == ""
    (tmp_path / "left").touch()
    assert why_wrong(data, tmp_path, Counter()) == "it left ['left']"
    for raises, says in ((KeyError("w"), "KeyError"), (OnnxError("no"), "an error without a file and a fix")):
        monkeypatch.setattr(tg, "from_onnx", Mock(side_effect=raises))
        assert why_wrong(data, tmp_path, Counter()).startswith(says)


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("tg 1\n")
    with pytest.raises(OnnxError, match="not an ONNX file"):
        tg.from_onnx(tmp_path / "text.onnx")
    with pytest.raises(OnnxError, match="cannot be read"):
        tg.from_onnx(tmp_path / "none.onnx")
    with pytest.raises(OnnxError, match="cannot be read"):
        tg.from_onnx(tmp_path)
