"""A FlashInfer-Trace folder fills the same tables as everything else: the builders of rows are those of the records' tests."""

from tests.records.conftest import make, start

__all__ = ["make", "start"]
