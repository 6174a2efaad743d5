"""serving/json_masks.py: a random walk below the masks is JSON of the schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from tensor_graphs.serving.json_masks import JsonMasks, SchemaError
from tests.serving.http.scripted import END, byte_tokenizer

SCHEMAS: list[dict[str, Any]] = [
    {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3, "maximum": 20}, "b": {"enum": ["é", "😀"]}},
     "required": ["a", "b"], "additionalProperties": False},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
    {"$ref": "#/$defs/t", "$defs": {"t": {"type": "object", "required": ["left"], "additionalProperties": False,
                                          "properties": {"left": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/t"}]}}}}},
    {"type": "string", "pattern": "^[ab]{2,4}$"},
]


@pytest.fixture(scope="module")
def masks(tmp_path_factory: pytest.TempPathFactory) -> JsonMasks:
    """Of a model that has more ids than its tokenizer."""
    return JsonMasks(byte_tokenizer(tmp_path_factory.mktemp("masks")), 300, [END])


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: str(schema)[:30])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_drawn_below_the_mask_is_json_of_the_schema(schema: dict[str, Any], seed: int, masks: JsonMasks) -> None:
    allowed, new, draw = masks.mask(schema), [], np.random.default_rng(seed)
    while True:
        mask = allowed(new)
        assert mask is not None and mask.shape == (300,) and mask.dtype == bool and not mask[257:].any() and mask.any()
        if mask[END]:
            break
        token = int(draw.choice(np.flatnonzero(mask & ~np.isin(np.arange(300), list(b" \n\r\t")))))
        new.append(token)
        assert len(new) < 500
    jsonschema.validate(json.loads(bytes(new).decode()), schema)


def test_a_mask_takes_several_ids_at_once_and_the_same_ones_again(masks: JsonMasks) -> None:
    allowed = masks.mask({"enum": ["yes", "no"]})
    assert np.flatnonzero(allowed(list(b'"y'))).tolist() == [ord("e")]
    assert np.flatnonzero(allowed(list(b'"y'))).tolist() == [ord("e")]
    assert np.flatnonzero(allowed(list(b'"yes"'))).tolist() == [END]


@pytest.mark.parametrize("schema", [{"type": "nothing"}, {"type": "string", "pattern": "((("}, {"$ref": "http://elsewhere"},
                                    {"not": {"type": "string"}, "type": "array", "uniqueItems": True}])
def test_a_schema_that_makes_no_grammar_is_refused(schema: dict[str, Any], masks: JsonMasks) -> None:
    with pytest.raises(SchemaError, match="JSON schema makes no grammar"):
        masks.mask(schema)


def test_a_model_without_an_end_id_cannot_end_json(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="no end-of-text id"):
        JsonMasks(byte_tokenizer(tmp_path), 257, [])
