"""The onnx package's own node tests: a sample by the interpreter and by compiled plans; `make test-long` runs them all."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.frontends.onnx.conformance import NodeTest, judge, markdown, node_tests
from tensor_graphs.frontends.onnx.importer import OnnxModel
from tests.cli.command import ROOT


@pytest.fixture(scope="module")
def tests() -> list[NodeTest]:
    return node_tests()


def compiled(model: OnnxModel, inputs: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
    bound = tg.bind(tg.compile(model.graph, backends=("numpy",)), model.weights)
    return bound.run(inputs)


def test_a_sample_is_computed_as_it_says_or_refused(tests: list[NodeTest]) -> None:
    rows = [judge(test) for test in random.Random(0).sample([t for t in tests if t.plain], 300)]
    assert [row for row in rows if row.status == "wrong"] == []
    counts = Counter(row.status for row in rows)
    assert (counts["native"] + counts["function"] + counts["opaque"]) / len(rows) >= 0.97 and counts["function"] >= 25, counts


def test_a_sample_of_compiled_plans_computes_the_same(tests: list[NodeTest]) -> None:
    plain = [t for t in tests if t.plain and not t.name.endswith("_expanded")]
    rows = [judge(test, compiled) for test in random.Random(1).sample(plain, 4)]
    assert [row for row in rows if row.status == "wrong"] == []


def test_tests_of_strings_sequences_and_narrow_types_are_refused_by_name(tests: list[NodeTest]) -> None:
    rows = [judge(test) for test in random.Random(2).sample([t for t in tests if not t.plain], 25)]
    assert {row.status for row in rows} == {"refused"} and all(row.reason for row in rows)


def test_small_models_and_those_that_torch_exported_are_computed_or_refused() -> None:
    rows = [judge(test) for test in node_tests("simple", "pytorch-converted", "pytorch-operator")]
    counts = Counter(row.test.kind for row in rows if row.status in ("native", "function"))
    assert [row for row in rows if row.status == "wrong"] == []
    assert all(row.reason for row in rows if row.status == "refused")
    assert counts["pytorch-operator"] == 35 and counts["pytorch-converted"] == 82 and counts["simple"] >= 16, counts


@pytest.mark.long
def test_the_table_is_that_of_the_installed_package(tests: list[NodeTest]) -> None:
    """Its lines for ops and what follows are compared: the counts before them have the sets that take minutes, and onnxruntime."""
    pages = markdown([judge(test) for test in tests]), (ROOT / "docs" / "conformance" / "onnx.md").read_text(encoding="utf-8")
    new, committed = (page[page.index("| op |"):].splitlines() for page in pages)
    assert [line for line in new if line not in committed] == []


def test_a_wrong_value_is_seen(tests: list[NodeTest]) -> None:
    test = next(t for t in tests if t.name == "test_add")
    (inputs, outputs), = test.arrays()
    bent = replace(test, data_sets=[(list(inputs.values()), [x + np.float32(1e-2) for x in outputs.values()])])
    assert judge(test).status == "native" and judge(bent).status == "wrong"
