"""frontends/onnx/importer.py: what becomes a dim, a parameter, a constant; functions and bodies; what is refused, and how."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tensor_graphs as tg
from tensor_graphs.frontends.onnx.errors import NotSupported, OnnxError, ValueNeeded
from tensor_graphs.frontends.torch.index_ranges import IndexRangeError
from tests.frontends.onnx.files import INT64, info, model, one, perceptron, run


def normal(*shape: int) -> np.ndarray:
    """Normal numbers, the same at each call."""
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


def test_a_model_is_compiled_and_bound_like_any_graph(tmp_path: Path) -> None:
    file, x = tmp_path / "small.onnx", normal(4, 6)
    onnx.save(perceptron(), file)
    imported = tg.from_onnx(file)
    assert imported.name == "small" and dict(imported.nodes) == {"native": 4} and dict(imported.opsets) == {"": 21}
    bound = tg.bind(tg.compile(imported.graph, backends=("numpy",)), imported.weights)
    (expected,) = ReferenceEvaluator(perceptron()).run(None, {"x": x})
    assert np.allclose(bound.run({"x": x})["y"], expected, rtol=1e-5, atol=1e-6)


def test_named_sizes_are_dims_with_the_range_that_is_asked_for() -> None:
    assert tg.from_onnx(perceptron()).graph.dims == {"batch": tg.dim("batch", 1, 4096)}
    assert tg.from_onnx(perceptron(), dims={"batch": (2, 9)}).graph.dims == {"batch": tg.dim("batch", 2, 9)}
    assert tg.from_onnx(perceptron(), dims={"batch": 3}).graph.inputs["x"].shape == (3, 6)
    assert tg.from_onnx(perceptron(None)).graph.inputs["x"].shape[0] == tg.dim("x_0", 1, 4096)
    assert tg.from_onnx(perceptron("batch size")).graph.inputs["x"].shape[0] == tg.dim("batch_size", 1, 4096)


@pytest.mark.parametrize("size", ["8", True, -1, 8.0, (5, 2), (1,), (1, None)])
def test_a_size_that_is_none_is_refused(size: Any) -> None:
    with pytest.raises(OnnxError, match=r"dims\['batch'\] is .*\n  fix: a size, or its range \(lowest, highest\)"):
        tg.from_onnx(perceptron(), dims={"batch": size})


@pytest.mark.parametrize("shape", [(), (3, 4)])
def test_a_value_takes_the_place_of_an_input_s_default(shape: tuple[int, ...]) -> None:
    """A number is a constant of the graph, a matrix a parameter."""
    default, x = np.ones(shape, np.float32), normal(3, 4)
    proto = model([helper.make_node("Mul", ["x", "s"], ["y"])], [info("x", (3, 4)), info("s", shape)], [info("y", (3, 4))],
                  {"s": default})
    assert tg.from_onnx(proto).defaults == ("s",)
    assert np.array_equal(run(proto, {"x": x})["y"], x)
    assert np.array_equal(run(proto, {"x": x}, values={"s": default * 3})["y"], x * 3)
    with pytest.raises(OnnxError, match=r"values\['s'\] has the shape \[7\]"):
        tg.from_onnx(proto, values={"s": np.zeros(7, np.float32)})


def test_names_of_sizes_that_are_spelt_alike_stay_two_dims() -> None:
    node = helper.make_node("Transpose", ["x"], ["y"])
    imported = tg.from_onnx(model([node], [info("x", ("a b", "a_b"))], [info("y", ("a_b", "a b"))]), dims={"a b": (1, 8)})
    assert imported.graph.inputs["x"].shape == (tg.dim("a_b", 1, 8), tg.dim("a_b_", 1, 4096))


def test_dims_are_narrowed_to_where_the_shapes_fit_and_others_keep_their_range() -> None:
    """The positions of a table are cut to the length of the sequence, as exported encoders do."""
    nodes = [helper.make_node("Shape", ["ids"], ["n"], start=1, end=2), helper.make_node("Slice", ["table", "zero", "n"], ["rows"]),
             helper.make_node("Add", ["ids", "rows"], ["y"])]
    stored = {"table": np.arange(100, dtype=np.float32), "zero": np.zeros(1, np.int64)}
    imported = tg.from_onnx(model(nodes, [info("ids", ("batch", "sequence"))], [info("y", ("batch", "sequence"))], stored))
    assert {name: str(tg.dim(name, *d.bounds())) and d.bounds() for name, d in imported.graph.dims.items()} == {
        "batch": (1, 4096), "sequence": (1, 64)}


def test_shapes_are_computed_while_the_graph_is_built() -> None:
    """x[n, 4, 6] -> [n, 24] by Shape, Gather, Mul and Concat, and back by −1."""
    nodes = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Gather", ["s", "zero"], ["n"]),
             helper.make_node("Gather", ["s", "one"], ["a"]), helper.make_node("Gather", ["s", "minus"], ["b"]),
             helper.make_node("Mul", ["a", "b"], ["ab"]), helper.make_node("Unsqueeze", ["n", "axes"], ["n1"]),
             helper.make_node("Unsqueeze", ["ab", "axes"], ["ab1"]), helper.make_node("Concat", ["n1", "ab1"], ["to"], axis=0),
             helper.make_node("Reshape", ["x", "to"], ["flat"]), helper.make_node("Reshape", ["flat", "back"], ["y"])]
    stored = {"zero": np.array(0), "one": np.array(1), "minus": np.array(-1), "axes": np.zeros(1, np.int64),
              "back": np.array([-1, 4, 6])}
    proto = model(nodes, [info("x", ("n", 4, 6))], [info("y", ("n", 4, 6)), info("flat", ("n", 24))], stored)
    imported = tg.from_onnx(proto)
    n = imported.graph.dims["n"]
    assert imported.graph.outputs["flat"].shape == (n, 24) and imported.graph.outputs["y"].shape == (n, 4, 6)
    x = normal(5, 4, 6)
    assert np.array_equal(run(proto, {"x": x})["y"], x)


def test_a_shape_that_depends_on_an_input_needs_its_value() -> None:
    inputs = {"x": np.arange(6, dtype=np.float32), "to": np.array([2, 3])}
    proto = one("Reshape", inputs)
    with pytest.raises(ValueNeeded, match=r"the input to in the node 'the node'") as e:
        tg.from_onnx(proto)
    assert e.value.inputs == ("to",) and "values={'to': array}" in str(e.value)
    imported = tg.from_onnx(proto, values={"to": inputs["to"]})
    assert set(imported.graph.inputs) == {"x"} and imported.graph.outputs["y"].shape == (2, 3)


@pytest.mark.parametrize(("how", "says"), [
    ({"values": {"nothing": 1}}, "values names 'nothing'"), ({"dims": {"nothing": 1}}, "dims names 'nothing'"),
    ({"values": {"x": np.zeros((2, 6))}}, None), ({"values": {"x": np.zeros((2, 5), np.float32)}}, r"the shape \[2, 5\]"),
    ({"values": {"x": np.zeros(6, np.float32)}}, r"the shape \[6\]"), ({"values": {"x": np.array([["a"] * 6])}}, "an array of <U1"),
])
def test_values_and_dims_must_be_those_of_the_model(how: dict[str, Any], says: str | None) -> None:
    if says is None:
        assert not tg.from_onnx(perceptron(), **how).graph.inputs
        return
    with pytest.raises(OnnxError, match=says):
        tg.from_onnx(perceptron(), **how)


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(OnnxError, match=r"pip install 'tensor_graphs\[onnx\]'"):
        tg.from_onnx("small.onnx")


def test_a_global_pool_of_norms_is_the_norm_of_each_channel() -> None:
    x = normal(2, 3, 4, 5)
    pooled = run(one("GlobalLpPool", {"x": x}), {"x": x})["y"]
    assert np.allclose(pooled[..., 0, 0], np.sqrt((x ** 2).sum((2, 3))), rtol=1e-5)


def test_a_source_that_is_no_path_is_refused() -> None:
    with pytest.raises(tg.TensorGraphsError, match="source"):
        tg.from_onnx(5)


def test_initialisers_are_parameters_and_small_ones_constants() -> None:
    nodes = [helper.make_node("Mul", ["x", "scale"], ["h"]), helper.make_node("Add", ["h", "rows"], ["y"])]
    stored = {"scale": np.array(0.5, np.float32), "rows": np.ones((2, 3), np.float32), "unused": np.ones(99, np.float32)}
    imported = tg.from_onnx(model(nodes, [info("x", (2, 3))], [info("y", (2, 3))], stored))
    assert set(imported.graph.parameters) == set(imported.weights) == {"rows"}
    assert not imported.weights["rows"].flags.writeable


def test_each_of_many_initialisers_has_its_own_values() -> None:
    count = 40
    nodes = [helper.make_node("Add", [f"h{i}" if i else "x", f"w{i}"], [f"h{i + 1}"]) for i in range(count)]
    stored = {f"w{i}": np.full(2, 2.0 ** i, np.float32) for i in range(count)}
    imported = tg.from_onnx(model(nodes, [info("x", (2,))], [info(f"h{count}", (2,))], stored))
    assert {name: array.tolist() for name, array in imported.weights.items()} == {
        name: array.tolist() for name, array in stored.items()} and set(imported.graph.parameters) == set(stored)


def test_external_data_is_mapped_and_its_absence_is_one_error(tmp_path: Path) -> None:
    file = tmp_path / "small.onnx"
    onnx.save(perceptron(), file, save_as_external_data=True, size_threshold=0, location="weights.bin")
    imported = tg.from_onnx(file)
    assert isinstance(imported.weights["w1"].base, np.memmap) or isinstance(imported.weights["w1"], np.memmap)
    assert np.array_equal(imported.weights["w2"], tg.from_onnx(perceptron()).weights["w2"])
    (tmp_path / "weights.bin").write_bytes(b"short")
    with pytest.raises(OnnxError, match=r"which has 5; 120 are needed"):
        tg.from_onnx(file)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(OnnxError, match=r"the external data of the tensor 'w1' is missing") as e:
        tg.from_onnx(file)
    assert f"file: {file}" in str(e.value)


@pytest.mark.parametrize("place", ["../weights.bin", "/etc/passwd", "a/../../weights.bin", ""])
def test_external_data_outside_of_the_folder_is_refused(place: str, tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(bytes(999))
    proto = perceptron()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=place)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "small.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(OnnxError, match=r"a relative path below the folder"):
        tg.from_onnx(tmp_path / "inner" / "small.onnx")


def test_an_op_without_a_row_is_computed_by_its_schemas_function() -> None:
    x = normal(3, 4)
    proto = one("Selu", {"x": x})
    (expected,) = ReferenceEvaluator(proto).run(None, {"x": x})
    assert np.allclose(run(proto, {"x": x})["y"], expected, rtol=1e-5, atol=1e-6)
    assert dict(tg.from_onnx(proto).nodes) == {"function": 1}


def test_a_function_of_the_model_reads_its_attributes() -> None:
    inner = helper.make_node("LeakyRelu", ["a"], ["b"])
    inner.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    function = helper.make_function("mine", "Steep", ["a"], ["b"], [inner], [helper.make_opsetid("", 21)], ["slope"])
    proto = model([helper.make_node("Steep", ["x"], ["y"], domain="mine", slope=3.0)], [info("x", (4,))], [info("y", (4,))],
                  functions=[function])
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    assert run(proto, {"x": np.array([-2, -1, 0, 1], np.float32)})["y"].tolist() == [-6, -3, 0, 1]


def test_an_unread_attribute_is_refused_by_name() -> None:
    with pytest.raises(NotSupported, match=r"the attribute axis=0 of Add .*op Add, domain ai.onnx, opset 7"):
        tg.from_onnx(one("Add", {"x": np.ones((2, 2), np.float32), "b": np.ones(2, np.float32)}, opset=7, axis=0))


def test_before_opset_7_the_axes_of_the_second_operand_lie_where_its_axis_says() -> None:
    x, b = normal(2, 3, 4), normal(2, 3)
    assert np.allclose(run(one("Mul", {"x": x, "b": b}, opset=6, axis=0, broadcast=1), {"x": x, "b": b})["y"], x * b[..., None])
    with pytest.raises(NotSupported, match=r"axis=2 of Mul"):
        tg.from_onnx(one("Mul", {"x": x, "b": b}, opset=6, axis=2, broadcast=1))


def test_a_result_that_has_no_counterpart_is_refused_where_it_is_read() -> None:
    """Before opset 10 the second result of Dropout is no mask of bool."""
    nodes = [helper.make_node("Dropout", ["x"], ["h", "mask"]), helper.make_node("Neg", ["h"], ["y"])]
    x = normal(3)
    assert np.array_equal(run(model(nodes, [info("x", (3,))], [info("y", (3,))], opset=7), {"x": x})["y"], -x)
    nodes[1].input[0] = "mask"
    with pytest.raises(NotSupported, match=r"reads 'mask', which is a result that has no counterpart here"):
        tg.from_onnx(model(nodes, [info("x", (3,))], [info("y", (3,))], opset=7))


def test_sequences_hold_tensors_while_the_graph_is_built() -> None:
    """x in parts of two columns, without the second one, in another order, as one tensor."""
    nodes = [helper.make_node("SplitToSequence", ["x", "two"], ["parts"], axis=1),
             helper.make_node("SequenceErase", ["parts", "one"], ["fewer"]),
             helper.make_node("SequenceAt", ["fewer", "minus"], ["last"]),
             helper.make_node("SequenceInsert", ["fewer", "last", "zero"], ["more"]),
             helper.make_node("ConcatFromSequence", ["more"], ["y"], axis=1), helper.make_node("SequenceLength", ["more"], ["n"])]
    stored = {"two": np.array(2), "one": np.array(1), "minus": np.array(-1), "zero": np.array(0)}
    x = normal(3, 5)
    outputs = [info("y", (3, None)), info("n", (), INT64)]
    results = run(model(nodes, [info("x", (3, 5))], outputs, stored), {"x": x})
    assert results["n"] == 3 and np.array_equal(results["y"], np.concatenate([x[:, 4:], x[:, :2], x[:, 4:]], 1))
    with pytest.raises(NotSupported, match="a sequence where a tensor is needed"):
        tg.from_onnx(model([*nodes[:1], helper.make_node("Neg", ["parts"], ["y"])], [info("x", (3, 5))], [info("y", None)], stored))
    with pytest.raises(NotSupported, match="axis 9 of SequenceAt"):
        tg.from_onnx(model(nodes[:3], [info("x", (3, 5))], [info("last", (3, None))], {**stored, "minus": np.array(9)}))


def test_boxes_are_suppressed_where_boxes_and_scores_are_known() -> None:
    boxes = np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 10, 1, 11]]], np.float32)
    known = {"boxes": boxes, "scores": np.array([[[0.9, 0.75, 0.6]]], np.float32), "most": np.array([3]), "iou": np.float32([0.5]),
             "least": np.float32([0])}
    imported = tg.from_onnx(one("NonMaxSuppression", known), values=known)
    assert dict(imported.nodes) == {"opaque": 1}
    assert tg.interpret(imported.graph, {}).outputs["y"].tolist() == [[0, 0, 0], [0, 0, 2]]


def test_an_unknown_op_is_refused_with_its_node_domain_opset_and_file(tmp_path: Path) -> None:
    proto = one("Multinomial", {"x": np.ones((2, 3), np.float32)})
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(NotSupported) as e:
        tg.from_onnx(tmp_path / "m.onnx")
    for part in ("the op Multinomial", "domain ai.onnx", "opset 21", "'the node'", f"file: {tmp_path / 'm.onnx'}"):
        assert part in str(e.value)


def test_two_branches_of_one_shape_are_chosen_at_run_time() -> None:
    branches = {f"{name}_branch": helper.make_graph([helper.make_node(op, ["x", "x"], [name])], name, [], [info(name, (2,))])
                for name, op in (("then", "Add"), ("else", "Mul"))}
    proto = model([helper.make_node("If", ["c"], ["y"], **branches)],
                  [info("x", (2,)), info("c", (), TensorProto.BOOL)], [info("y", (2,))])
    x = np.array([3, 5], np.float32)
    assert run(proto, {"x": x, "c": np.array(True)})["y"].tolist() == [6, 10]
    assert run(proto, {"x": x, "c": np.array(False)})["y"].tolist() == [9, 25]
    assert run(proto, {"x": x}, values={"c": np.array(False)})["y"].tolist() == [9, 25]


def loop(count: int | None) -> onnx.ModelProto:
    """s starts as x and doubles while s < 20, `count` times at most."""
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "s"], ["s2"]), helper.make_node("Less", ["s2", "limit"], ["go2"])], "body",
        [info("i", (), INT64), info("go", (), TensorProto.BOOL), info("s", ())],
        [info("go2", (), TensorProto.BOOL), info("s2", ())])
    stored = {"limit": np.array(20, np.float32), "yes": np.array(True)} | ({} if count is None else {"n": np.array(count)})
    return model([helper.make_node("Loop", ["n" if count is not None else "", "yes", "x"], ["y"], body=body)],
                 [info("x", ())], [info("y", ())], stored)


@pytest.mark.parametrize("start", [1.0, 4.0, 30.0])
def test_a_loop_stops_where_its_computed_condition_says(start: float) -> None:
    x = np.array(start, np.float32)
    (expected,) = ReferenceEvaluator(loop(9)).run(None, {"x": x})
    assert run(loop(9), {"x": x})["y"] == expected


def test_a_loop_without_a_known_bound_is_refused() -> None:
    with pytest.raises(NotSupported, match=r"a Loop of more than 64 iterations"):
        tg.from_onnx(loop(None))


@pytest.mark.parametrize("steps", [5, 70, "steps"])
def test_a_scan_is_written_out_or_a_loop(steps: int | str) -> None:
    body = helper.make_graph([helper.make_node("Add", ["s", "x"], ["s2"]), helper.make_node("Identity", ["s2"], ["out"])], "body",
                             [info("s", (2,)), info("x", (2,))], [info("s2", (2,)), info("out", (2,))])
    proto = model([helper.make_node("Scan", ["s0", "xs"], ["last", "all"], body=body, num_scan_inputs=1)],
                  [info("s0", (2,)), info("xs", (steps, 2))], [info("last", (2,)), info("all", (steps, 2))])
    xs = normal(steps if isinstance(steps, int) else 9, 2)
    results = run(proto, {"s0": np.ones(2, np.float32), "xs": xs})
    assert np.allclose(results["all"], 1 + np.cumsum(xs, 0), atol=1e-5) and np.allclose(results["last"], results["all"][-1])


def test_names_that_the_language_does_not_allow_are_changed_and_reported() -> None:
    node = helper.make_node("Neg", ["an input"], ['an "output"'])
    proto = model([node], [info("an input", (2,))], [info('an "output"', (2,))])
    imported = tg.from_onnx(proto)
    assert imported.inputs == {"an input": "an_input"} and imported.outputs == {'an "output"': "an__output_"}


def test_the_package_does_not_import_onnx() -> None:
    code = "import sys, tensor_graphs.frontends.onnx.importer as i; print('onnx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(("op", "attributes", "x", "y", "expected"), [
    ("Div", {}, [-7, 7, -6, 7], [2, -2, 3, 0], [-3, -3, -2, 0]),
    ("Mod", {}, [-7, 7, -6, 5], [3, -3, 3, 5], [2, -2, 0, 0]),
    ("Mod", {"fmod": 1}, [-7, 7, -6, 5], [3, -3, 3, 5], [-1, 1, 0, 0]),
    ("Pow", {}, [-1, -1, 2, 2], [-3, -2, -1, 5], [-1, 1, 0, 32]),
    ("Gather", {}, [10, 11, 12, 13], [-1, -4, 3, 0], [13, 10, 13, 10]),
])
def test_integers_are_those_of_onnx(op: str, attributes: dict[str, int], x: list[int], y: list[int], expected: list[int]) -> None:
    inputs = {"x": np.array(x), "b": np.array(y)}
    assert run(one(op, inputs, **attributes), inputs)["y"].tolist() == expected


@pytest.mark.parametrize("opset", [23, 24])
def test_attention_has_no_values_for_rows_that_see_nothing_and_is_causal_from_the_first_key(opset: int) -> None:
    q, k, v = normal(1, 2, 3, 4), normal(1, 2, 5, 4), normal(1, 2, 5, 4) + 1
    mask = np.ones((3, 5), bool)
    mask[1] = False
    seen = {"q": q, "k": k, "v": v, "m": mask}
    assert np.array_equal(run(one("Attention", seen, opset=opset), seen)["y"][:, :, 1], np.zeros((1, 2, 4), np.float32))
    causal = one("Attention", {"q": q, "k": k, "v": v}, opset=opset, is_causal=1)
    (expected,) = ReferenceEvaluator(causal).run(None, {"q": q, "k": k, "v": v})
    assert np.allclose(run(causal, {"q": q, "k": k, "v": v})["y"], expected, atol=1e-6)


@pytest.mark.parametrize("attributes", [{}, {"softcap": 2.0, "is_causal": 1}, {"scale": 0.3}])
@pytest.mark.parametrize("flat", [False, True])
def test_attention_without_a_mask_is_that_of_the_language(attributes: dict[str, float], flat: bool) -> None:
    seen = {"q": normal(2, 4, 3, 8), "k": normal(2, 2, 5, 8), "v": normal(2, 2, 5, 8)}
    if flat:
        seen = {name: x.transpose(0, 2, 1, 3).reshape(2, x.shape[2], -1) for name, x in seen.items()}
        attributes = {**attributes, "q_num_heads": 4, "kv_num_heads": 2}
    proto = one("Attention", seen, opset=24, **attributes)
    assert dict(tg.from_onnx(proto).nodes) == {"native": 1}
    (expected,) = ReferenceEvaluator(proto).run(None, seen)
    assert np.allclose(run(proto, seen)["y"], expected, atol=1e-6)


def test_channels_of_an_even_number_are_more_behind_than_before() -> None:
    x = normal(6, 6, 2, 2)                               # the reference goes over as many channels as there are images
    proto = one("LRN", {"x": x}, size=4, alpha=0.5)
    (expected,) = ReferenceEvaluator(proto).run(None, {"x": x})
    assert np.allclose(run(proto, {"x": x})["y"], expected, rtol=1e-5)


@pytest.mark.parametrize("equation", ["ii", "ii->i", "iij", "...ii->...i"])
def test_a_letter_twice_is_a_diagonal_and_without_a_result_its_sum(equation: str) -> None:
    x = normal(*{"iij": (3, 3, 2), "...ii->...i": (2, 3, 3)}.get(equation, (3, 3)))
    assert np.allclose(run(one("Einsum", {"x": x}, equation=equation), {"x": x})["y"], np.einsum(equation, x), atol=1e-6)


def test_a_layer_with_other_activations_is_refused() -> None:
    inputs = {"x": normal(2, 1, 3), "w": normal(1, 8, 3), "r": normal(1, 8, 2)}
    with pytest.raises(NotSupported, match="LSTM with the activations relu, tanh, tanh"):
        tg.from_onnx(one("LSTM", inputs, hidden_size=2, activations=["Relu", "Tanh", "Tanh"]))


def test_a_slice_back_from_before_the_first_element_begins_at_it() -> None:
    """The operator clamps such a start to 0; numpy's slice is empty."""
    x = np.arange(5)
    nodes = [helper.make_node("Slice", ["x", "a", "b", "c", "d"], ["y"])]
    stored = {"a": np.array([-6]), "b": np.array([-9]), "c": np.array([0]), "d": np.array([-1])}
    assert run(model(nodes, [info("x", (5,), INT64)], [info("y", (None,), INT64)], stored), {"x": x})["y"].tolist() == [0]


def test_the_softmax_of_older_opsets_goes_over_all_axes_from_its_axis_on() -> None:
    x = normal(2, 3, 4)
    assert run(one("Softmax", {"x": x}, opset=11), {"x": x})["y"].sum((1, 2)) == pytest.approx(np.ones(2))
    assert run(one("Softmax", {"x": x}, opset=13), {"x": x})["y"].sum(-1) == pytest.approx(np.ones((2, 3)))


def test_a_declared_output_of_another_dtype_is_an_error() -> None:
    proto = model([helper.make_node("Neg", ["x"], ["y"])], [info("x", (2,))], [info("y", (2,), INT64)])
    with pytest.raises(OnnxError, match=r"the output 'y' is f32\[2\], and is declared as i64"):
        tg.from_onnx(proto)


def test_what_is_made_of_weights_alone_is_computed_when_the_plan_is_bound() -> None:
    stored = {"w": normal(1, 32, 6), "r": normal(1, 32, 8), "b": normal(1, 64)}
    gates = helper.make_node("LSTM", ["x", *stored], ["y"], hidden_size=8)
    source = model([gates], [info("x", (5, 2, 6))], [info("y", (5, 1, 2, 8))], stored)
    plan = tg.compile(tg.from_onnx(source).graph, database=":memory:", backends=("numpy",), simplify=False)
    program = plan.variants[0].program
    assert {i.op for i in program.instructions} == {"linear", "scan"} and "concat" in {i.op for i in program.bind_instructions}


ROW = np.arange(1, 5, dtype=np.float32)[None]
OUT_OF_RANGE: dict[str, tuple[dict[str, np.ndarray], dict[str, Any]]] = {
    "Gather": ({"i": np.array([7])}, {"axis": 1}),
    "Gather of 20 indices, which are a parameter": ({"i": np.arange(-20, 0)}, {"axis": 1}),
    "Gather of one index": ({"i": np.array(-5)}, {"axis": 1}),
    "GatherElements": ({"i": np.array([[4]])}, {"axis": 1}),
    "GatherND": ({"i": np.array([[0, 4]])}, {}),
    "ScatterElements": ({"i": np.array([[4]]), "u": np.float32([[9]])}, {"axis": 1}),
    "ScatterND": ({"i": np.array([[1, 0]]), "u": np.float32([9])}, {}),
    "Compress": ({"i": np.array([False] * 4 + [True])}, {"axis": 1}),
    "ReverseSequence": ({"i": np.array([2, 2, 2, 2])}, {"time_axis": 0, "batch_axis": 1}),
}


@pytest.mark.parametrize("case", OUT_OF_RANGE)
def test_constant_indices_out_of_range_are_refused_with_the_node_the_index_and_the_size(case: str) -> None:
    (stored, attributes), op = OUT_OF_RANGE[case], case.split()[0]
    node = helper.make_node(op, ["x", *stored], ["y"], name="the node", **attributes)
    proto = model([node], [info("x", ROW.shape)], [helper.make_empty_tensor_value_info("y")], stored)
    with pytest.raises(OnnxError, match=rf"{op} of the index -?\d+ of an axis of \d elements in the node 'the node'"):
        tg.from_onnx(proto)


def test_an_index_that_is_in_range_at_some_sizes_is_no_error() -> None:
    node = helper.make_node("Gather", ["x", "i"], ["y"])
    proto = model([node], [info("x", ("rows", 2))], [info("y", (1, 2))], {"i": np.array([5])})
    x = normal(6, 2)
    assert np.array_equal(run(proto, {"x": x})["y"], x[5:])
    with pytest.raises(OnnxError, match="index 5 of an axis of rows elements"):
        tg.from_onnx(proto, dims={"rows": (1, 5)})


def test_indices_of_a_run_out_of_range_read_0_and_write_nothing_and_can_be_checked() -> None:
    i, u = np.array([[1, -1, 4, -5]]), np.float32([[10, 20, 30, 40]])
    gathers, scatters = (one(op, inputs, axis=1) for op, inputs in (
        ("GatherElements", {"x": ROW, "i": i}), ("ScatterElements", {"x": ROW, "i": i, "u": u})))
    assert run(gathers, {"x": ROW, "i": i})["y"].tolist() == [[2, 4, 0, 0]]
    assert run(scatters, {"x": ROW, "i": i, "u": u})["y"].tolist() == [[1, 10, 3, 20]]
    imported = tg.from_onnx(gathers)
    imported.require_indices({"x": ROW, "i": i.clip(-4, 3)})
    with pytest.raises(IndexRangeError, match=r"GatherElements 'the node': index -5 is out of bounds for an axis of size 4"):
        imported.require_indices({"x": ROW, "i": i})
    with pytest.raises(OnnxError, match="the input 'i' has no array"):
        imported.require_indices({"x": ROW})


def test_an_index_of_a_branch_that_may_not_run_is_not_checked() -> None:
    branches = {f"{which}_branch": helper.make_graph(nodes, which, [], [info(which, (1, 1))]) for which, nodes in {
        "then": [helper.make_node("Gather", ["x", "i"], ["then"], axis=1)],
        "else": [helper.make_node("ReduceMax", ["x"], ["else"])]}.items()}
    node = helper.make_node("If", ["c"], ["y"], **branches)
    proto = model([node], [info("x", (1, 4)), info("i", (1,), INT64), info("c", (), TensorProto.BOOL)], [info("y", (1, 1))])
    inputs = {"x": ROW, "i": np.array([9]), "c": np.array(False)}
    tg.from_onnx(proto).require_indices(inputs)
    assert run(proto, inputs)["y"] == 4


def test_integers_divided_by_0_are_0_and_the_rest_is_the_dividend() -> None:
    inputs = {"a": np.array([7, -7, 0], np.int32), "b": np.zeros(3, np.int32)}
    assert [run(one(op, inputs), inputs)["y"].tolist() for op in ("Div", "Mod")] == [[0, 0, 0], [7, -7, 0]]
