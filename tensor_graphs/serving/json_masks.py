"""json_masks: masks that let a model write only JSON of a schema, by the library llguidance (extra `serve`, decision 0121)."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tensor_graphs.frontends.errors import FrontendError
from tensor_graphs.frontends.text.token_bytes import token_bytes
from tensor_graphs.frontends.text.tokenizer import Tokenizer
from tensor_graphs.serving.requests import TokenMask


class SchemaError(FrontendError):
    """A JSON schema that no grammar can be built from."""


class _TokenTable:
    """The vocabulary in the form that llguidance reads: bytes of each token. Ids without a token have none and are never allowed.

    A call splits a text; it only has to be exact for texts that a grammar forces, and these are generated token by token."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, size: int, end_ids: Sequence[int]) -> None:
        self.eos_token_id = end_ids[0]
        self.tokens = [token_bytes(tokenizer, i) for i in range(size)]
        self.special_token_ids = sorted({*end_ids, *(i for i, special in tokenizer.added_ids.items() if special and i < size)})
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, special_tokens=False)


class JsonMasks:
    """Maker of masks for one vocabulary. size: number of the model's ids. end_ids: ids that may follow a complete JSON text.
    Raises SchemaError where llguidance is missing or the model has no end id."""

    def __init__(self, tokenizer: Tokenizer, size: int, end_ids: Sequence[int]) -> None:
        try:
            from llguidance import LLTokenizer, TokenizerWrapper
        except ImportError:
            raise SchemaError("answers in JSON need the package llguidance on the server",
                              fix="pip install 'tensor_graphs[serve]'") from None
        if not end_ids:
            raise SchemaError("the model has no end-of-text id, so nothing can end a JSON text", fix="eos_token_id in config.json")
        self._size = size
        self._tokenizer = LLTokenizer(TokenizerWrapper(_TokenTable(tokenizer, size, end_ids)), eos_token=list(end_ids))

    def mask(self, schema: Mapping[str, Any]) -> TokenMask:
        """Return the mask of one generation. Raises SchemaError for a schema that is malformed, not supported or too large."""
        from llguidance import LLMatcher

        try:
            grammar = LLMatcher.grammar_from_json_schema(dict(schema))
        except (ValueError, RecursionError) as error:
            raise SchemaError(f"the JSON schema cannot be read: {error}") from None
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise SchemaError(f"the JSON schema makes no grammar: {matcher.get_error()}")
        read, lock = 0, threading.Lock()

        def allowed(ids: Sequence[int]) -> np.ndarray[Any, Any]:
            nonlocal read
            with lock:
                if not matcher.consume_tokens(list(ids[read:])) and matcher.is_error():
                    raise SchemaError(f"the grammar of the JSON schema failed: {matcher.get_error()}")
                read = len(ids)
                bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
            return np.unpackbits(bits, bitorder="little")[:self._size].astype(bool)

        return allowed
