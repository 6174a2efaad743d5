"""Models in bfloat16, family by family: as accurate as transformers in bfloat16, and each value stored in the dtype of its node."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest

import tensor_graphs as tg
from benchmarks.families_bf16 import BACKENDS, ENCODING, LIMIT, MODELS, Texts, compiled_for, texts_of, write_bf16_folder
from tensor_graphs.language.dtypes import bf16, f32
from tensor_graphs.paths.plan import Plan
from tensor_graphs.runtime.compiled_graph import CompiledGraph
from tensor_graphs.runtime.node_instructions import NodeValues

CASES = {family if native else f"{family} on numpy": (case, backends) for family, case in {**MODELS, **ENCODING}.items()
         for native, backends in zip((True, False), BACKENDS, strict=True)}
SHORT, TEXTS = ("llama", "gemma2 on numpy", "gpt2 on numpy"), 16
"""cases of the default run: rotations and gates; caps, offsets and norms behind blocks; layer norms, biases and positions"""


@dataclass(frozen=True)
class Model:
    texts: Texts
    compiled: CompiledGraph
    native: bool


@pytest.fixture(scope="module", params=[pytest.param(case, id=name, marks=() if name in SHORT else pytest.mark.long)
                                        for name, case in CASES.items()])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A small model of one family, compiled for C and generated kernels, or for numpy alone."""
    folder, (case, backends) = tmp_path_factory.mktemp("bf16"), request.param
    write_bf16_folder(case, folder)
    return Model(texts_of(case, folder, TEXTS), compiled_for(case, folder, backends), "gen" in backends)


def test_outputs_are_as_near_to_float64_as_those_of_transformers(model: Model) -> None:
    row = model.texts.row(model.compiled)
    assert row.ratio <= LIMIT, row
    assert row.ours_norm <= LIMIT * row.theirs_norm, row


def test_outputs_in_eight_bits_are_refused(model: Model) -> None:
    narrow = [out.astype(ml_dtypes.float8_e4m3fn).astype(np.float64) for out in model.texts.theirs]
    assert model.texts.errors(narrow)[0] > LIMIT * model.texts.errors(model.texts.theirs)[0]


def stored(plan: Plan) -> list[tuple[str, str, str]]:
    """Return (label of an instruction, dtype of a node that it computes, dtype in memory) for nodes of the compiled graph."""
    assert plan.given is not None
    variants = [NodeValues(plan, variant.path, variant.program) for variant in plan.variants]
    nodes = [node for node in plan.given.nodes if len(node.types) == 1]
    places = [(node, values.at(node)) for values in variants for node in nodes]
    return [(place[0], node.dtype.name, place[2].dtype.name) for node, place in places if place is not None]


def of_other_dtypes(plan: Plan) -> list[tuple[str, str]]:
    """Return (label, dtype) of results in f32 or bf16 whose shape the compiled graph has in the other dtype only.

    This also finds values inside of parts, which are no nodes of that graph."""
    assert plan.given is not None
    shapes = {dtype: {t.shape for node in plan.given.nodes for t in node.types if t.dtype is dtype} for dtype in (bf16, f32)}
    return [(instruction.label, out.dtype.name) for variant in plan.variants for instruction in variant.program.instructions
            for out in instruction.outs for other in {bf16, f32} - {out.dtype}
            if out.dtype in shapes and out.shape in shapes[other] - shapes[out.dtype]]


def test_each_value_is_stored_in_the_dtype_of_its_node(model: Model) -> None:
    plan = model.compiled.plan
    assert all(node == memory for _, node, memory in stored(plan)), stored(plan)
    assert len({label for label, _, memory in stored(plan) if memory == "bf16"}) >= 8 * 2     # of each of two layers
    assert all(b.dtype is bf16 for v in plan.variants for b in v.program.buffers if b.kind == "state")
    if model.native:                              # numpy computes some composites by their definitions, with f32 inside
        assert not of_other_dtypes(plan)


@pytest.fixture(scope="module")
def products() -> tg.Graph:
    n = tg.dim("n", 1, 8)
    narrow = tg.linear(tg.rms_norm(tg.input("x", (n, 64), tg.bf16)), tg.parameter("w", (64, 64), tg.bf16))
    wide = tg.softmax(tg.linear(tg.input("y", (n, 48)), tg.parameter("v", (32, 48), tg.bf16)))
    return tg.graph({"narrow": narrow, "wide": wide})


@pytest.mark.parametrize(("precision", "wrong"), [("written", False), ("f32", True), ("bf16", True)])
def test_values_of_other_dtypes_than_the_graphs_are_seen(products: tg.Graph, precision: str, wrong: bool) -> None:
    plan = tg.compile(products, backends=("numpy",), precision=precision)
    seen = any(node != memory for _, node, memory in stored(plan)) or bool(of_other_dtypes(plan))
    assert seen == wrong
