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
from tensor_graphs.frontends.onnx.conformance import NodeTest, _array, is_plain, judge, markdown, node_tests
from tensor_graphs.frontends.onnx.importer import OnnxModel
from tests.cli.command import ROOT


@pytest.fixture(scope="module")
def tests() -> list[NodeTest]:
    return node_tests()


def compiled(model: OnnxModel, inputs: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
    bound = tg.bind(tg.compile(model.graph, backends=("numpy",), database=":memory:"), model.weights)
    return bound.run(inputs)


def test_a_sample_is_computed_as_it_says_or_refused(tests: list[NodeTest]) -> None:
    rows = [judge(test) for test in random.Random(0).sample([t for t in tests if is_plain(t.model)], 300)]
    assert [row for row in rows if row.status == "wrong"] == []
    counts = Counter(row.status for row in rows)
    assert (counts["native"] + counts["function"]) / len(rows) >= 0.96 and counts["function"] >= 25, counts


def test_a_sample_of_compiled_plans_computes_the_same(tests: list[NodeTest]) -> None:
    plain = [t for t in tests if is_plain(t.model) and not t.name.endswith("_expanded")]
    rows = [judge(test, compiled) for test in random.Random(1).sample(plain, 4)]
    assert [row for row in rows if row.status == "wrong"] == []


def test_tests_of_strings_sequences_and_narrow_types_are_refused_by_name(tests: list[NodeTest]) -> None:
    rows = [judge(test) for test in random.Random(2).sample([t for t in tests if not is_plain(t.model)], 25)]
    assert {row.status for row in rows} == {"refused"} and all(row.reason for row in rows)


@pytest.mark.long
def test_the_table_is_that_of_the_installed_package(tests: list[NodeTest]) -> None:
    assert markdown([judge(test) for test in tests]) == (ROOT / "docs" / "conformance" / "onnx.md").read_text(encoding="utf-8")


def test_a_wrong_value_is_seen(tests: list[NodeTest]) -> None:
    test = next(t for t in tests if t.name == "test_add")
    (inputs, outputs), = test.data_sets
    changed = [_array(output) + np.float32(1e-2) for output in outputs]
    bent = replace(test, data_sets=[(inputs, changed)])
    assert judge(test).status == "native" and judge(bent).status == "wrong"
