"""flashinfer: a data set comes out of the database byte by byte as it went in, as equal JSON when its text is
gone, and with whatever was changed in between."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensor_graphs import language as tg
from tensor_graphs.frontends.flashinfer import (
    DatasetConflict,
    MalformedFile,
    NoDataset,
    export_dataset,
    import_dataset,
)
from tensor_graphs.language.text import parse_graph
from tensor_graphs.records import DefinitionRecord, GraphRecord, open_database, queries, upkeep
from tensor_graphs.records.database import Database
from tensor_graphs.records.logs import LOG_BYTES

COMMITTED = Path(__file__).parent / "data_set"
WORKLOADS, TRACES = "workloads/gemm/gemm_n6_k8.jsonl", "traces/gemm/gemm_n6_k8.jsonl"
GEMM, NORM = "definitions/gemm/gemm_n6_k8.json", "definitions/rmsnorm/fused_add_rmsnorm_h8.json"
CUDA = "solutions/gemm/gemm_n6_k8/gemm_cuda.json"


def files(folder: Path) -> dict[str, bytes]:
    found = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.suffix in (".json", ".jsonl")}
    return dict(sorted(found.items()))


def records(data: bytes, path: str) -> list[Any]:
    """The documents of a file, as text in which 1, 1.0, true, null and an absent key all look different."""
    text = data.decode().removeprefix("\ufeff")
    lines = [text] if path.endswith(".json") else [line for line in text.split("\n") if line.strip()]
    return [json.dumps(json.loads(line), sort_keys=True) for line in lines]


def change(database: Database, statement: str, **values: Any) -> int:
    with database.writing() as connection:
        return connection.execute(sa.text(statement), values).rowcount


def rows(database: Database, statement: str) -> list[Any]:
    with database.reading() as connection:
        return list(connection.execute(sa.text(statement)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the committed data set, with its safetensors file."""
    copy = tmp_path / "toy-trace"
    shutil.copytree(COMMITTED, copy)
    (copy / "blob/workloads/gemm").mkdir(parents=True)
    (copy / "blob/workloads/gemm/b.safetensors").write_bytes((8).to_bytes(8, "little") + b"{}      ")
    return copy


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database, and one with the data set: copying a file is faster than migrating and importing."""
    base = tmp_path_factory.mktemp("templates")
    with open_database(base / "empty.db"):
        pass
    shutil.copy(base / "empty.db", base / "imported.db")
    with open_database(base / "imported.db") as opened:
        import_dataset(COMMITTED, opened, dataset="toy-trace")
    return base


@pytest.fixture
def database(templates: Path, tmp_path: Path) -> Iterator[Database]:
    with open_database(shutil.copy(templates / "empty.db", tmp_path / "benchmarks.db")) as opened:
        yield opened


@pytest.fixture
def imported(templates: Path, tmp_path: Path) -> Iterator[Database]:
    with open_database(shutil.copy(templates / "imported.db", tmp_path / "imported.db")) as opened:
        yield opened


# ---- without loss ----------------------------------------------------------------------------------------------------


def test_every_file_comes_out_byte_by_byte(imported: Database, folder: Path, tmp_path: Path) -> None:
    report = export_dataset(imported, tmp_path / "out")
    assert files(tmp_path / "out") == files(folder)
    assert report.files == sorted(files(folder))
    assert (report.changed, report.from_columns) == ([], 0)
    assert report.inputs == ["./blob/workloads/gemm/b.safetensors", "blob/workloads/gqa_paged/i.safetensors"]


def test_the_committed_data_set_has_the_oddities_that_it_is_there_for() -> None:
    every = b"".join(files(COMMITTED).values())
    for oddity in (
        b"\r\n", b"\xef\xbb\xbf", b'"Infinity"', b'"NaN"', b"\\u005f", b"\\ud800", b"1e0", b"1.0", b"-0.0", b"   \t\n",
        b"float4_e2m1", b"IMPLAUSIBLE", b"INCORRECT_DTYPE", b"cutedsl", b"tvm-ffi", b'"shape": null', b"1E400", b"\\u0000",
    ):  # fmt: skip
        assert oddity in every, oddity
    traces = files(COMMITTED)[TRACES]
    assert not traces.endswith(b"\n")
    lines = traces.split(b"\n")
    assert lines.count(lines[0]) == 3 and b"" in lines
    assert files(COMMITTED)["traces/rmsnorm/empty.jsonl"] == b""


def test_without_the_text_the_columns_give_equal_json(imported: Database, folder: Path, tmp_path: Path) -> None:
    change(imported, "UPDATE imported_lines SET verbatim = NULL")
    report = export_dataset(imported, tmp_path / "out")
    wanted, found = files(folder), files(tmp_path / "out")
    assert {path: records(data, path) for path, data in found.items()} == {
        path: records(data, path) for path, data in wanted.items()
    }
    assert found != wanted and report.from_columns > 50


def test_the_comparison_of_json_sees_types_and_absent_keys() -> None:
    texts = ('{"a":1}', '{"a":1.0}', '{"a":true}', '{"a":null}', "{}", '{"a":"1"}', '{"a":-0.0}', '{"a":0.0}')
    assert len({records(text.encode(), "x.json")[0] for text in texts}) == len(texts)
    assert records(b'{"a":1e0,"b":2}', "x.json") == records(b'{"b": 2, "a": 1.0}', "x.json")


def test_what_only_text_could_hold_is_in_the_columns_as_far_as_they_can(imported: Database) -> None:
    """The columns, not a second copy of the document: the rest of a plain trace holds nothing that a column holds."""
    (rest,) = rows(imported, "SELECT rest FROM imported_lines WHERE kind = 'trace' ORDER BY id LIMIT 1")[0]
    assert json.loads(rest) == {"document": {
        "definition": None, "solution": None, "workload": {"axes": None, "inputs": None, "uuid": "u-1"},
        "evaluation": {
            "status": None, "environment": {"hardware": None, "libs": None}, "timestamp": None, "log": None,
            "correctness": {"max_relative_error": None, "max_absolute_error": None, "extra": None},
            "performance": {"latency_ms": None, "reference_latency_ms": None, "speedup_factor": None},
        },
    }}  # fmt: skip


def test_a_log_longer_than_the_column_keeps_is_not_cut(database: Database, folder: Path, tmp_path: Path) -> None:
    path = folder / TRACES
    record = json.loads(path.read_bytes().split(b"\n")[0])
    record["evaluation"]["log"] = "".join(f"line {i}\n" for i in range(LOG_BYTES // 8))
    path.write_text(json.dumps(record) + "\n")
    import_dataset(folder, database)
    change(database, "UPDATE imported_lines SET verbatim = NULL")
    export_dataset(database, tmp_path / "out")
    assert records((tmp_path / "out" / TRACES).read_bytes(), TRACES) == records(path.read_bytes(), TRACES)


# ---- where the rows go -----------------------------------------------------------------------------------------------


def test_a_definition_becomes_a_graph_of_ours_or_an_opaque_one(imported: Database) -> None:
    found = rows(imported, """SELECT d.name, d.op_type, g.structural_key, g.text FROM definitions d
                              JOIN canonical_graphs g ON g.id = d.canonical_graph_id ORDER BY d.name""")
    by_name = {row.name: row for row in found}
    assert list(by_name) == ["every_dtype", "fused_add_rmsnorm_h8", "gemm_n6_k8", "gqa_paged_decode_h2_d4"]
    rows_of = tg.dims.dim("M", 1, 1 << 24)
    from tensor_graphs.language.composites import dot
    from tensor_graphs.language.leaves import input as make_input

    gemm = dot(make_input("A", (rows_of, 8), "f16"), make_input("B", (6, 8), "f16").T)
    assert by_name["gemm_n6_k8"].structural_key == tg.graph.graph(gemm).structural_key
    norm = by_name["fused_add_rmsnorm_h8"]
    assert parse_graph(norm.text).structural_key == norm.structural_key
    assert by_name["gqa_paged_decode_h2_d4"].text == ""


def test_the_report_counts_understood_and_opaque_references_with_reasons(database: Database, folder: Path) -> None:
    report = import_dataset(folder, database)
    assert set(report.understood) == {"gemm_n6_k8", "fused_add_rmsnorm_h8"}
    assert report.opaque == {
        "every_dtype": "'x_float8_e4m3' is of float8_e4m3, which has no counterpart here",
        "gqa_paged_decode_h2_d4": "'k_cache' is of float8_e4m3fn, in which no reference is read",
    }
    assert report.kept_whole == {
        "definitions/other/strange.json:1": "it is no JSON object",
        "definitions/other/the_same_again.json:1": "the definition it refers to says something else in the database",
        "workloads/gqa_paged/gqa_paged_decode_h2_d4.jsonl:12": "it is no JSON object",
        "workloads/gqa_paged/gqa_paged_decode_h2_d4.jsonl:13": "its workload has no axes or no inputs",
        f"{TRACES}:19": "its status is 'EXPLODED'",
        f"{TRACES}:20": "it has a solution and no evaluation, or the other way round",
    }
    assert report.unknown_definitions == ["nobody_defined_this"]
    assert report.unknown_solutions == ["gemm_n6_k8: solution_that_is_not_here"]
    assert report.missing_inputs == ["blob/workloads/gqa_paged/i.safetensors"]
    assert report.left_out == ["README.md"]
    assert dict(report.records) == {"definition": 4, "whole": 6, "solution": 8, "workload": 18, "trace": 19}
    text = report.lines()
    assert text[1:4] == [
        "files: 18 new, 0 changed, 0 already there",
        "records: 4 definitions, 6 whole, 8 solutions, 18 workloads, 19 traces",
        "references: 3 became graphs, 2 are opaque",
    ]
    assert json.loads(json.dumps(report.to_json()))["files_new"] == report.files_new


def test_a_trace_fills_the_columns_that_people_ask_for(imported: Database) -> None:
    key = rows(imported, "SELECT structural_key FROM canonical_graphs WHERE human_name = 'gemm_n6_k8'")[0][0]
    assert queries.leaderboard(imported, key) == ()  # until somebody trusts the code
    for (signature,) in rows(imported, "SELECT signature FROM implementations"):
        upkeep.trust(imported, signature)
    best = queries.leaderboard(imported, key, hardware_name="NVIDIA_H100")
    assert best and all(row.hardware_name == "NVIDIA_H100" for row in best)
    (first,) = rows(imported, "SELECT t.*, i.name, e.libs, w.axes_json FROM benchmark_traces t"
                              " JOIN implementations i ON i.id = t.implementation_id"
                              " JOIN environments e ON e.id = t.environment_id"
                              " JOIN workloads w ON w.id = t.workload_id ORDER BY t.id LIMIT 1")  # fmt: skip
    assert (first.name, first.kind, first.status) == ("gemm_cuda", "cold", "PASSED")
    assert (first.median_ms, first.baseline_ms, first.baseline) == (0.027989333495497704, 0.06826666742563248, "reference")
    assert (first.speedup_factor, first.max_relative_error) == (2.4390244032289545, 0.00671140942722559)
    assert (first.timer, first.verifier, first.timestamp) == ("flashinfer-bench",) * 2 + ("2026-03-17 14:21:00.613304",)
    assert json.loads(first.libs) == {"torch": "2.9.1+cu130", "cuda": "13.0"}
    assert json.loads(first.axes_json) == {"M": 1}
    (worst,) = rows(imported, "SELECT max_relative_error, max_absolute_error FROM benchmark_traces ORDER BY id LIMIT 1 OFFSET 11")
    assert tuple(worst) == (float("inf"), float("inf"))


def test_lines_of_equal_axes_and_inputs_share_a_workload(imported: Database) -> None:
    shared = rows(imported, """SELECT workload_id, COUNT(*) FROM imported_lines
                               WHERE kind = 'workload' AND definition = 'gemm_n6_k8' GROUP BY workload_id ORDER BY 2 DESC""")
    assert shared[0][1] == 3  # u-1 twice and u-2
    assert sum(count for _, count in shared) == 7


def test_nothing_that_was_imported_is_trusted_or_handed_out(imported: Database, make: Any) -> None:
    assert {row.trusted for row in rows(imported, "SELECT trusted FROM implementation_sources")} == {0}
    without = rows(imported, "SELECT i.name FROM implementations i WHERE NOT EXISTS"
                             " (SELECT 1 FROM implementation_sources s WHERE s.implementation_id = i.id)")  # fmt: skip
    assert without == []
    key = rows(imported, "SELECT structural_key FROM canonical_graphs WHERE human_name = 'gemm_n6_k8'")[0][0]
    for (workload_key,) in rows(imported, "SELECT key FROM workloads"):
        for environment_key, _ in queries.environments(imported):
            assert queries.best_implementation(imported, key, workload_key, environment_key, 1.0) == ()


def test_the_database_is_sound_after_an_import(imported: Database) -> None:
    assert upkeep.check(imported).problems == ()


# ---- what was changed shows ------------------------------------------------------------------------------------------

GEMM_LINE = "SELECT {} FROM imported_lines WHERE kind = '{}' AND definition = 'gemm_n6_k8' ORDER BY id LIMIT 1"
FIRST_TRACE = f"({GEMM_LINE.format('trace_id', 'trace')})"
OF_TRACE = f"(SELECT {{}} FROM benchmark_traces WHERE id = {FIRST_TRACE})"
OF_CUDA = "(SELECT id FROM implementations WHERE name = 'gemm_cuda')"

EDITS = [
    (f"UPDATE benchmark_traces SET median_ms = 0.5 WHERE id = {FIRST_TRACE}", TRACES, "evaluation/performance/latency_ms", 0.5),
    (f"UPDATE benchmark_traces SET status = 'TIMEOUT' WHERE id = {FIRST_TRACE}", TRACES, "evaluation/status", "TIMEOUT"),
    (f"UPDATE benchmark_traces SET max_relative_error = 9e999 WHERE id = {FIRST_TRACE}", TRACES,
     "evaluation/correctness/max_relative_error", "Infinity"),
    (f"UPDATE benchmark_traces SET max_absolute_error = NULL WHERE id = {FIRST_TRACE}", TRACES,
     "evaluation/correctness/max_absolute_error", None),
    (f"UPDATE benchmark_traces SET baseline_ms = 3 WHERE id = {FIRST_TRACE}", TRACES,
     "evaluation/performance/reference_latency_ms", 3.0),
    (f"UPDATE benchmark_traces SET timestamp = '2026-04-01 00:00:00.000000' WHERE id = {FIRST_TRACE}", TRACES,
     "evaluation/timestamp", "2026-04-01T00:00:00"),
    (f"UPDATE benchmark_traces SET full_log = X'{zlib.compress(b'new').hex()}' WHERE id = {FIRST_TRACE}", TRACES,
     "evaluation/log", "new"),
    ("UPDATE environments SET hardware_name = 'Other' WHERE id = " + OF_TRACE.format("environment_id"), TRACES,
     "evaluation/environment/hardware", "Other"),
    ("UPDATE workloads SET axes_json = '{\"M\": 7}' WHERE id = " + OF_TRACE.format("workload_id"), WORKLOADS,
     "workload/axes", {"M": 7}),
    ("UPDATE implementations SET name = 'renamed' WHERE id = " + OF_CUDA, CUDA, "name", "renamed"),
    ("UPDATE implementations SET description = 'better' WHERE id = " + OF_CUDA, CUDA, "description", "better"),
    ("UPDATE implementations SET requirements = '{}' WHERE id = " + OF_CUDA, CUDA, "spec", {}),
    ("UPDATE definitions SET description = 'better' WHERE name = 'gemm_n6_k8'", GEMM, "description", "better"),
    ("UPDATE definitions SET description = 'none before' WHERE name = 'fused_add_rmsnorm_h8'", NORM, "description", "none before"),
    ("UPDATE definitions SET tags = '[\"a\"]' WHERE name = 'gemm_n6_k8'", GEMM, "tags", ["a"]),
    ("UPDATE definitions SET reference = 'def run(): 0' WHERE name = 'gemm_n6_k8'", GEMM, "reference", "def run(): 0"),
    ("UPDATE imported_lines SET definition = 'other' WHERE implementation_id = " + OF_CUDA, CUDA, "definition", "other"),
]  # fmt: skip


def look(document: Any, path: str) -> Any:
    for key in path.split("/"):
        document = document[key]
    return document


@pytest.mark.parametrize(("statement", "path", "where", "value"), EDITS, ids=lambda part: str(part)[:60])
def test_a_changed_column_shows_in_the_export_and_only_there(
    imported: Database, folder: Path, tmp_path: Path, statement: str, path: str, where: str, value: Any
) -> None:
    assert change(imported, statement) >= 1
    report = export_dataset(imported, tmp_path / "out")
    before, after = files(folder), files(tmp_path / "out")
    assert report.changed
    documents = [json.loads(each) for each in records(after[path], path)]
    assert repr(look(documents[0], where)) == repr(value)
    changed = {place.rpartition(":")[0] for place in report.changed}
    assert {name for name in before if before[name] != after[name]} == changed and path in changed
    numbers = {int(place.rpartition(":")[2]) for place in report.changed if place.startswith(path)}
    if path.endswith(".jsonl"):
        old, new = before[path].split(b"\n"), after[path].split(b"\n")
        assert {i for i, (a, b) in enumerate(zip(old, new, strict=True), 1) if a != b} == numbers
    else:  # written in the style of the file: only the lines of that value differ
        old, new = before[path].splitlines(), after[path].splitlines()
        assert len(set(new) - set(old)) <= 3


def test_an_edited_source_file_shows(imported: Database, tmp_path: Path) -> None:
    of_util = f"path = 'src/util.cuh' AND implementation_id = {OF_CUDA}"
    change(imported, f"UPDATE implementation_sources SET content = 'int x;' WHERE {of_util}")
    export_dataset(imported, tmp_path / "out")
    sources = json.loads((tmp_path / "out" / CUDA).read_bytes())["sources"]
    assert [each["content"] for each in sources][1] == "int x;"


def test_a_time_that_was_absent_and_is_there_now_appears(imported: Database, tmp_path: Path) -> None:
    assert change(imported, "UPDATE benchmark_traces SET median_ms = 4 WHERE status = 'TIMEOUT'") == 1
    export_dataset(imported, tmp_path / "out")
    found = [json.loads(each) for each in records((tmp_path / "out" / TRACES).read_bytes(), TRACES)]
    (timed_out,) = [each for each in found if each["evaluation"] and each["evaluation"]["status"] == "TIMEOUT"]
    assert timed_out["evaluation"]["performance"] == {"latency_ms": 4.0}


def test_a_deleted_row_takes_its_lines_along(imported: Database, folder: Path, tmp_path: Path) -> None:
    change(imported, f"DELETE FROM benchmark_traces WHERE id = {FIRST_TRACE}")
    export_dataset(imported, tmp_path / "out")
    before, after = files(folder)[TRACES], files(tmp_path / "out")[TRACES]
    assert after == before.partition(b"\n")[2]


# ---- again, and changed ----------------------------------------------------------------------------------------------


def test_a_second_import_finds_everything_there(imported: Database, folder: Path) -> None:
    before = upkeep.stats(imported).rows
    report = import_dataset(folder, imported)
    assert upkeep.stats(imported).rows == before
    assert (report.files_new, report.files_changed, len(report.files_known)) == ([], [], 18)
    assert report.lines()[1] == "files: 0 new, 0 changed, 18 already there"


def test_a_file_that_has_grown_keeps_the_rows_of_its_lines(imported: Database, folder: Path, tmp_path: Path) -> None:
    ids = [row[0] for row in rows(imported, "SELECT trace_id FROM imported_lines WHERE kind = 'trace' ORDER BY number")]
    lines = (folder / TRACES).read_bytes().split(b"\n")
    lines[1], lines[2] = lines[2], lines[1]
    again = lines[0].replace(b"14:21:00", b"15:00:00")
    (folder / TRACES).write_bytes(b"\n".join([again, *lines]) + b"\n" + lines[0])
    report = import_dataset(folder, imported)
    assert report.files_changed == [TRACES] and len(report.files_known) == 17
    assert report.records["trace"] == 3  # the new one, one more of the first, and the last, which has a newline now
    now = [row[0] for row in rows(imported, "SELECT trace_id FROM imported_lines WHERE kind = 'trace' ORDER BY number")]
    assert now[1:4] == [ids[0], ids[2], ids[1]] and now[0] not in ids
    export_dataset(imported, tmp_path / "out")
    assert files(tmp_path / "out") == files(folder)


def test_a_description_that_changed_in_the_file_changes_the_row(imported: Database, folder: Path, tmp_path: Path) -> None:
    (folder / "definitions/other/the_same_again.json").unlink()
    for path, old, new in ((GEMM, b"A @ B.T\"", b"A B^T\""), (CUDA, b"in cuda", b"in CUDA")):
        data = (folder / path).read_bytes()
        assert old in data
        (folder / path).write_bytes(data.replace(old, new))
    before = upkeep.stats(imported).rows
    import_dataset(folder, imported)
    assert upkeep.stats(imported).rows == before
    assert rows(imported, "SELECT description FROM definitions WHERE name = 'gemm_n6_k8'")[0][0] == "C = A B^T"
    assert rows(imported, "SELECT description FROM implementations WHERE name = 'gemm_cuda'")[0][0] == "in CUDA"
    export_dataset(imported, tmp_path / "out")
    assert {name: data for name, data in files(tmp_path / "out").items() if "again" not in name} == files(folder)


def test_code_that_changed_is_another_implementation(imported: Database, folder: Path) -> None:
    data = (folder / CUDA).read_bytes()
    (folder / CUDA).write_bytes(data.replace(b"#pragma once", b"#pragma  once"))
    import_dataset(folder, imported)
    found = rows(imported, "SELECT id FROM implementations WHERE name = 'gemm_cuda' ORDER BY id")
    assert len(found) == 2
    timed = rows(imported, "SELECT DISTINCT t.implementation_id FROM benchmark_traces t"
                           " JOIN implementations i ON i.id = t.implementation_id WHERE i.name = 'gemm_cuda'")  # fmt: skip
    assert timed == [found[0]]  # the old traces stay with the code that was measured


def test_a_solution_that_arrives_late_takes_over_its_traces(imported: Database, folder: Path, tmp_path: Path) -> None:
    late = json.loads((folder / CUDA).read_bytes()) | {"name": "solution_that_is_not_here"}
    (folder / CUDA).with_name("late.json").write_text(json.dumps(late))
    report = import_dataset(folder, imported)
    assert report.records["solution"] == 1
    (row,) = rows(imported, "SELECT id, backend, author FROM implementations WHERE name = 'solution_that_is_not_here'")
    assert (row.backend, row.author) == ("cuda", "someone")
    sources = rows(imported, f"SELECT path, trusted FROM implementation_sources WHERE implementation_id = {row.id}")
    assert sorted(map(tuple, sources)) == [("src/main.cu", 0), ("src/util.cuh", 0)]
    assert rows(imported, f"SELECT COUNT(*) FROM benchmark_traces WHERE implementation_id = {row.id}")[0][0] == 1
    export_dataset(imported, tmp_path / "out")
    assert files(tmp_path / "out") == files(folder)


def test_a_definition_of_ours_is_not_overwritten_by_one_of_the_same_name(database: Database, folder: Path, tmp_path: Path) -> None:
    graph = tg.graph.graph(_gemm())
    database.ensure_graph(GraphRecord(graph.structural_key, "", ""))
    ours = DefinitionRecord("gemm_n6_k8", graph.structural_key, {"M": {"type": "var"}}, "ours")
    database.ensure_definition(ours)
    report = import_dataset(folder, database)
    assert f"{GEMM}:1" in report.kept_whole
    assert rows(database, "SELECT description FROM definitions WHERE name = 'gemm_n6_k8'") == [("ours",)]
    export_dataset(database, tmp_path / "out")
    assert files(tmp_path / "out") == files(folder)


def _gemm() -> Any:
    from tensor_graphs.language.composites import dot
    from tensor_graphs.language.leaves import input as make_input

    return dot(make_input("A", (tg.dims.dim("M", 1, 1 << 24), 8), "f16"), make_input("B", (6, 8), "f16").T)


def test_a_row_changed_by_hand_does_not_leak_into_another_data_set(imported: Database, folder: Path, tmp_path: Path) -> None:
    change(imported, "UPDATE environments SET hardware_name = 'Other' WHERE hardware_name = 'NVIDIA_H100'")
    report = import_dataset(folder, imported, dataset="second")
    assert f"{TRACES}:1" in report.kept_whole
    export_dataset(imported, tmp_path / "out", dataset="second")
    assert files(tmp_path / "out") == files(folder)


# ---- mistakes --------------------------------------------------------------------------------------------------------

MISTAKES = [
    (TRACES, lambda data: data[: len(data) // 2], "line 12, column", "was cut off"),
    (TRACES, lambda data: data.replace(b"\n", b"\n{'a': 1}\n", 1), "line 2, column 2", "correct or remove that line"),
    (TRACES, lambda data: b"\n" + b"[" * 90_000, "line 2", "correct"),
    (TRACES, lambda data: b"[" * 200 + b"]" * 200, "line 1: more than 100 lists within lists", "correct that record"),
    (TRACES, lambda data: data + b"\n\xff\xfe", "line 23: byte", "save the file as UTF-8"),
    (TRACES, lambda data: data + b"\n" + b"9" * 5000, "line 23", "correct that record"),
    (GEMM, lambda data: data.replace(b'"type": "var",', b'"type" "var",'), "line 11, column 20", "correct or remove"),
    (CUDA, lambda data: b"", "line 1, column 1", "correct or remove"),
]


@pytest.mark.parametrize(("path", "spoil", "place", "fix"), MISTAKES, ids=lambda part: part if isinstance(part, str) else "")
def test_a_malformed_file_is_named_with_its_line_and_nothing_of_it_is_stored(
    database: Database, folder: Path, tmp_path: Path, path: str, spoil: Any, place: str, fix: str
) -> None:
    good = files(folder)
    (folder / path).write_bytes(spoil((folder / path).read_bytes()))
    with pytest.raises(MalformedFile) as caught:
        import_dataset(folder, database)
    message = str(caught.value)
    assert message.startswith(f"{path}, {place}") and "\n  fix: " in message and fix in message
    assert set(upkeep.stats(database).rows.values()) == {0}
    (folder / path).write_bytes(good[path])
    assert not import_dataset(folder, database).files_known
    export_dataset(database, tmp_path / "out")
    assert files(tmp_path / "out") == good


def spoil_three(folder: Path) -> None:
    (folder / GEMM).write_bytes(b"{")
    lines = (folder / TRACES).read_bytes().splitlines(keepends=True)
    lines[1], lines[4] = b"{'a': 1}\n", b"[" * 200 + b"]" * 200 + b"\n"
    (folder / TRACES).write_bytes(b"".join(lines))


def test_all_that_cannot_be_read_is_told_at_once_and_nothing_is_stored(
    database: Database, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil_three(folder)
    read_bytes = Path.read_bytes

    def closed(path: Path) -> bytes:
        if path == folder / CUDA:
            raise PermissionError(13, "Permission denied")
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", closed)
    with pytest.raises(MalformedFile) as caught:
        import_dataset(folder, database)
    first, *places, fix = str(caught.value).splitlines()
    assert first == f"4 places of {folder} cannot be read"
    assert places == [
        f"  {GEMM}, line 1, column 2: Expecting property name enclosed in double quotes",
        f"  {CUDA}: Permission denied",
        f"  {TRACES}, line 2, column 2: Expecting property name enclosed in double quotes",
        f"  {TRACES}, line 5: more than 100 lists within lists",
    ]
    assert fix.startswith("  fix: correct or remove that line") and fix.endswith("nothing of the data set was stored")
    assert "make the file readable; correct that record" in fix
    assert set(upkeep.stats(database).rows.values()) == {0}


def test_of_very_many_unreadable_lines_the_first_are_told(database: Database, folder: Path) -> None:
    (folder / TRACES).write_bytes(b"{\n" * 50)
    with pytest.raises(MalformedFile) as caught:
        import_dataset(folder, database)
    said = str(caught.value).splitlines()
    assert said[0] == f"50 places of {folder} cannot be read" and f"{TRACES}, line 20, column 2: " in said[20]
    assert said[21] == "  … 30 more" and len(said) == 23


def test_a_set_of_which_a_later_file_fails_leaves_nothing(database: Database, folder: Path, monkeypatch: Any) -> None:
    from tensor_graphs.frontends.flashinfer import importing

    before, seen, stored_lines = upkeep.stats(database).rows, [], importing.stored_lines

    def fail_late(*given: Any) -> Any:
        seen.append(given)
        if len(seen) == 9:
            raise KeyboardInterrupt
        return stored_lines(*given)

    monkeypatch.setattr(importing, "stored_lines", fail_late)
    with pytest.raises(KeyboardInterrupt):
        import_dataset(folder, database)
    assert upkeep.stats(database).rows == before
    assert len(import_dataset(folder, database).files_new) == 18       # and ids of the lost rows are forgotten
    assert upkeep.check(database).ok


def test_a_trace_of_the_future_is_kept_whole_and_counts_nowhere(database: Database, folder: Path, tmp_path: Path) -> None:
    text = (folder / TRACES).read_text()
    number, line = next((n, line) for n, line in enumerate(text.splitlines(), 1) if "PASSED" in line)
    document = json.loads(line)
    document["evaluation"]["timestamp"] = "2999-01-01T00:00:00"
    (folder / TRACES).write_text(text.replace(line, json.dumps(document)))
    report = import_dataset(folder, database)
    assert report.kept_whole[f"{TRACES}:{number}"] == "it is dated in the future"
    assert upkeep.check(database).ok
    export_dataset(database, tmp_path / "out")
    assert files(tmp_path / "out") == files(folder)


def test_a_file_that_fails_while_it_is_stored_leaves_nothing(database: Database, folder: Path, monkeypatch: Any) -> None:
    from tensor_graphs.frontends.flashinfer import importing

    before = upkeep.stats(database).rows
    monkeypatch.setattr(importing, "stored_lines", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        import_dataset(folder, database)
    assert upkeep.stats(database).rows == before


IMPORT = """
import sys
from tensor_graphs.records import open_database
from tensor_graphs.frontends.flashinfer import import_dataset
with open_database(sys.argv[1]) as database:
    print(len(import_dataset(sys.argv[2], database).files_new))
"""


def test_two_processes_that_import_one_folder_store_it_once(database: Database, folder: Path, tmp_path: Path, start: Any) -> None:
    processes = [start(IMPORT, database.location, folder) for _ in range(2)]
    out = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], out
    assert sum(int(text) for text, _ in out) == 18
    export_dataset(database, tmp_path / "out")
    assert files(tmp_path / "out") == files(folder)
    assert rows(database, "SELECT COUNT(*) FROM benchmark_traces")[0][0] == 19


def test_a_folder_without_a_data_set_is_refused(database: Database, tmp_path: Path) -> None:
    with pytest.raises(NoDataset, match=r"holds no definitions.*\n  fix: name the folder"):
        import_dataset(tmp_path, database)


def test_two_data_sets_with_one_path_are_exported_one_by_one(imported: Database, folder: Path, tmp_path: Path) -> None:
    first = files(folder)
    (folder / GEMM).write_bytes(first[GEMM].replace(b"rows", b"many rows"))
    import_dataset(folder, imported, dataset="second")
    with pytest.raises(DatasetConflict, match=r"'second' and 'toy-trace' have two different files .*\n  fix: .*dataset='second'"):
        export_dataset(imported, tmp_path / "out")
    with pytest.raises(DatasetConflict, match=r"no data set 'third'\n  fix: name one of: second, toy-trace"):
        export_dataset(imported, tmp_path / "out", dataset="third")
    export_dataset(imported, tmp_path / "a", dataset="toy-trace")
    export_dataset(imported, tmp_path / "b", dataset="second")
    assert (files(tmp_path / "a"), files(tmp_path / "b")) == (first, files(folder))


def test_a_path_that_leaves_the_folder_is_not_written(imported: Database, tmp_path: Path) -> None:
    change(imported, "UPDATE imported_files SET path = '../outside.json' WHERE path = :path", path=GEMM)
    with pytest.raises(DatasetConflict, match="outside of the folder"):
        export_dataset(imported, tmp_path / "out")
    assert not (tmp_path / "outside.json").exists()


# ---- any data set ----------------------------------------------------------------------------------------------------

TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=6)
NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70), st.floats(), st.booleans(), st.none(),
    st.sampled_from(["NaN", "Infinity", "-Infinity", 0, 0.0, -0.0]))
JSON = st.recursive(st.one_of(NUMBERS, TEXT), lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
                    max_leaves=4)  # fmt: skip
NAMES = st.sampled_from(["a", "b", "ä b", "x" * 250, "\0", "\udc00"])


def shape(**parts: Any) -> st.SearchStrategy[dict[str, Any]]:
    """A dict of most of these keys in any order, now and then with a value of another kind, or a key nobody knows."""

    def vary(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.integers(0, 19).flatmap(lambda i: JSON if i == 0 else strategy)

    known = {key: vary(strategy) for key, strategy in parts.items()}
    required = {key: known[key] for key in list(known)[::2]}
    chosen = st.fixed_dictionaries(required, optional={key: part for key, part in known.items() if key not in required})
    extra = st.one_of(st.just({}), st.just({}), st.dictionaries(TEXT, JSON, max_size=1))
    return st.tuples(chosen, extra, st.randoms(use_true_random=False)).map(_shuffled)


def _shuffled(parts: Any) -> dict[str, Any]:
    chosen, extra, random = parts
    items = [*{**extra, **chosen}.items()]
    random.shuffle(items)
    return dict(items)


AXES = st.dictionaries(st.sampled_from(["M", "N"]), st.sampled_from([{"type": "var"}, {"type": "const", "value": 4}]), min_size=1)
TENSORS = st.dictionaries(NAMES, st.sampled_from([{"shape": ["M", "N"], "dtype": "float32"}, {"shape": None, "dtype": "int8"}]))
DEFINITIONS = shape(name=NAMES, description=TEXT, axes=AXES, op_type=NAMES, inputs=TENSORS, tags=st.lists(TEXT, max_size=2),
                    outputs=TENSORS, constraints=st.just(["M == N"]),
                    reference=st.sampled_from(["def run(a):\n    return a", "def run(a, b):\n    return a * b", "?"]))
SOURCES = st.lists(shape(path=st.sampled_from(["a.py", "b.cu"]), ignored=JSON, content=TEXT), max_size=2)
SOLUTIONS = shape(name=NAMES, author=NAMES, definition=NAMES, description=TEXT,
                  spec=shape(language=st.sampled_from(["cuda", "triton", "x" * 90]), binding=TEXT, target_hardware=st.just(["a"])),
                  sources=SOURCES)
INPUTS = st.dictionaries(NAMES, st.one_of(st.just({"type": "random"}), NUMBERS.map(lambda n: {"type": "scalar", "value": n}),
                                          st.just({"type": "safetensors", "path": "b.safetensors", "tensor_key": "t"})), max_size=2)
WORKLOAD = shape(axes=st.dictionaries(NAMES, NUMBERS, max_size=2), uuid=TEXT, inputs=INPUTS)
EVALUATIONS = shape(
    status=st.sampled_from(["PASSED", "TIMEOUT", "INCORRECT_NUMERICAL", "UNHEARD_OF"]), log=TEXT,
    environment=shape(hardware=NAMES, libs=st.dictionaries(NAMES, TEXT, max_size=2)),
    correctness=shape(max_relative_error=NUMBERS, extra=JSON, max_absolute_error=NUMBERS),
    timestamp=st.sampled_from(["2026-03-17T14:21:51.613304", "2026-03-17T14:21:51", "2026-03-17 14:21Z",
                               "0001-01-01T00:00:00+05:00"]),
    performance=shape(latency_ms=NUMBERS, reference_latency_ms=NUMBERS, speedup_factor=NUMBERS))  # fmt: skip
TRACE = shape(definition=NAMES, nothing=st.none(), workload=WORKLOAD, more=JSON, evaluation=EVALUATIONS, kind=TEXT, solution=NAMES)
WORKLOAD_LINE = shape(definition=NAMES, solution=st.none(), workload=WORKLOAD, evaluation=st.none())

STYLES = st.builds(dict, separators=st.sampled_from([(",", ":"), (", ", ": "), (" , ", " : ")]), ensure_ascii=st.booleans())


def dump(document: Any, style: dict[str, Any], indent: int | None = None) -> bytes:
    try:
        return json.dumps(document, indent=indent, **style).encode()
    except UnicodeEncodeError:
        return json.dumps(document, indent=indent, **{**style, "ensure_ascii": True}).encode()


ENDINGS = st.sampled_from([b"\n", b"\r\n", b"  \n"])
LINES = st.lists(st.tuples(st.one_of(TRACE, TRACE, WORKLOAD_LINE, st.none()), STYLES, ENDINGS), max_size=5)


@st.composite
def datasets(draw: Any) -> dict[str, bytes]:
    """A data set by path. Lines come twice now and then, a file ends with a newline or without."""
    found = {}
    for room, kind, most in (("definitions", DEFINITIONS, 3), ("solutions", SOLUTIONS, 3)):
        for number, document in enumerate(draw(st.lists(kind, max_size=most))):
            text = dump(document, draw(STYLES), draw(st.sampled_from([None, 2, 4])))
            found[f"{room}/op/{number}.json"] = text + draw(st.sampled_from([b"", b"\n", b"\r\n"]))
    for room in ("workloads", "traces"):
        lines = [b"" + end if document is None else dump(document, style) + end for document, style, end in draw(LINES)]
        lines += draw(st.lists(st.sampled_from(lines), max_size=2)) if lines else []
        text = b"".join(lines)
        found[f"{room}/op/x.jsonl"] = text.rstrip(b"\r\n") if draw(st.booleans()) else text
    return found


@pytest.fixture(scope="module")
def one_for_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Database, Path]]:
    """One database for all examples: the rows of the data sets before are there, too."""
    with open_database(":memory:") as opened:
        yield opened, tmp_path_factory.mktemp("sets")


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(wanted=datasets())
def test_any_data_set_comes_out_as_it_went_in(one_for_all: tuple[Database, Path], wanted: dict[str, bytes]) -> None:
    database, base = one_for_all
    shutil.rmtree(base)
    for path, data in wanted.items():
        (base / "in" / path).parent.mkdir(parents=True, exist_ok=True)
        (base / "in" / path).write_bytes(data)
    name = f"set {rows(database, 'SELECT COUNT(DISTINCT dataset) FROM imported_files')[0][0]}"
    import_dataset(base / "in", database, dataset=name)
    export_dataset(database, base / "out", dataset=name)
    assert files(base / "out") == files(base / "in")
    assert len(import_dataset(base / "in", database, dataset=name).files_known) == len(wanted)
    ours = "SELECT id FROM imported_files WHERE dataset = :dataset"
    change(database, f"UPDATE imported_lines SET verbatim = NULL WHERE file_id IN ({ours})", dataset=name)
    export_dataset(database, base / "again", dataset=name)
    found = files(base / "again")
    assert {path: records(data, path) for path, data in found.items()} == {p: records(d, p) for p, d in sorted(wanted.items())}


def test_the_generated_data_sets_reach_every_table(one_for_all: tuple[Database, Path]) -> None:
    kinds = dict(map(tuple, rows(one_for_all[0], "SELECT kind, COUNT(*) FROM imported_lines GROUP BY kind")))
    assert set(kinds) == {"definition", "solution", "workload", "trace", "blank", "whole"}
    assert min(kinds.values()) >= 10, kinds
