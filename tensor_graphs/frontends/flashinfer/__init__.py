"""flashinfer: a FlashInfer-Trace data set (definitions, solutions, workloads, traces in a folder of JSON) into the
benchmark database and out again without loss.

In: a folder, or the database.  Out: rows like any other, or the same folder, byte by byte; a report either way.
May import: records, language (a reference becomes a graph).  Never: anything that runs a reference or a solution.
Read first: fields.py (which value is which column), then importing.py, exporting.py; documents.py is about JSON text;
reference_graph.py turns a definition's Python text into a graph (functions.py: one row for each function of torch).
Words: record = one definition, solution, workload or trace; line = where a record stands in its file; rest = what of a
record has no column; kept whole = a record that no table takes.
"""

from __future__ import annotations

from tensor_graphs.frontends.flashinfer.documents import MalformedFile
from tensor_graphs.frontends.flashinfer.exporting import DatasetConflict, export_dataset
from tensor_graphs.frontends.flashinfer.importing import NoDataset, import_dataset
from tensor_graphs.frontends.flashinfer.report import DatasetExport, DatasetImport

__all__ = [
    "DatasetConflict", "DatasetExport", "DatasetImport", "MalformedFile", "NoDataset", "export_dataset", "import_dataset",
]  # fmt: skip
