"""flashinfer: imports FlashInfer-Trace data sets (definitions, solutions, workloads, traces in a folder of JSON) into the
benchmark database and exports them again without loss.

In: a folder, or the database.  Out: ordinary rows, or the original folder, byte by byte; and a report.
May import: records, language (a reference becomes a graph).  Never: anything that runs a reference or a solution.
Read first: fields.py (value of a record <-> column), then importing.py, exporting.py; documents.py is about JSON text;
reference_graph.py turns a definition's Python text into a graph (frontends/torch/functions.py: a row for each function of torch).
Words: record = one definition, solution, workload or trace; line = a record's line in its file; rest = the values of a
record that have no column; kept whole = a record stored as JSON, as no table fits it.
"""

from __future__ import annotations

from tensor_graphs.frontends.flashinfer.documents import MalformedFile
from tensor_graphs.frontends.flashinfer.exporting import DatasetConflict, export_dataset
from tensor_graphs.frontends.flashinfer.importing import NoDataset, import_dataset
from tensor_graphs.frontends.flashinfer.report import DatasetExport, DatasetImport

__all__ = [
    "DatasetConflict", "DatasetExport", "DatasetImport", "MalformedFile", "NoDataset", "export_dataset", "import_dataset",
]  # fmt: skip
