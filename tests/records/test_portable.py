"""portable: an export carries every row and nothing else, and an import adds what is missing, all of it or nothing."""

from __future__ import annotations

import errno
import json
import math
import os
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tensor_graphs.records import (
    CorruptDatabase,
    DefinitionRecord,
    DeviceConstant,
    ExportError,
    InvalidRecord,
    ProfileRequest,
    SchemaMismatch,
    SourceRecord,
    open_database,
    portable,
    queries,
    schema,
    upkeep,
    work_queue,
)
from tensor_graphs.records.portable import CHUNK, KEYS, TABLES, export_file, import_file

FORMS = ("rows.jsonl.gz", "rows.jsonl", "rows.sqlite")
SOURCE = SourceRecord("k.c", "int x; // ×", trusted=True, language="c")


@pytest.fixture
def filled(database, make):
    """A database with rows in every table that other rooms write to."""
    moment = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
    database.ensure_definition(DefinitionRecord("tanh", make.graph.structural_key, {"n": {"type": "var"}}, "text", ("a",)))
    own = make.kernel(sources=(SOURCE,), requirements={"arch": ["x"]})
    database.add_traces([
        make.trace(own, timestamp=moment, log="a line\nanother", baseline="plain", baseline_ms=2.0, seed=2**62),
        make.trace(own, timestamp=moment, log="a line\nanother", baseline="plain", baseline_ms=2.0, seed=2**62),
        make.trace(own, status="INCORRECT_NUMERICAL", samples_ms=(), max_relative_error=math.inf),
        make.trace(make.recipe(), conditions={"load": [0.5, None]}, verbatim='{"x": 1}\n'),
    ])  # fmt: skip
    database.enqueue(ProfileRequest(own, make.workload(9), make.here, 3.0, "guess"))
    assert work_queue.claim_next(database, "somebody", make.here) is not None
    database.add_constants(make.here, [DeviceConstant("read_bandwidth", 54e9, "byte/s")])
    database.add_recipes("f" * 64, [{"recipes": [make.recipe().signature]}], [make.graph, make.target], [make.recipe()])
    with database.writing() as connection:
        connection.exec_driver_sql(
            "INSERT INTO imported_files VALUES (1, 'set', 'traces/a.jsonl', 'f00', 12, '2026-03-01 12:00:00.000000')"
        )
        connection.exec_driver_sql(
            "INSERT INTO imported_lines (id, file_id, number, kind, trace_id, verbatim) VALUES (1, 1, 1, 'trace', 4, 'text')"
        )
    return database


def content(database) -> dict[str, list[dict[str, object]]]:
    """Every row with its references resolved to what they mean, so that row ids do not matter."""
    out: dict[str, list[dict[str, object]]] = {}
    ids: dict[str, dict[int, object]] = {}
    with database.reading() as connection:
        for table in TABLES:
            rows, ids[table.name] = [], {}
            for found in connection.execute(table.select().order_by(table.c.id)).mappings():
                row = dict(found)
                number = row.pop("id")
                for column in table.columns:
                    for key in column.foreign_keys:
                        if row[column.name] is not None:
                            row[column.name] = ids[key.column.table.name][row[column.name]]
                ids[table.name][number] = tuple(row[name] for name in KEYS[table.name])
                rows.append(row)
            out[table.name] = sorted(rows, key=repr)
    return out


def write(database, statement: str) -> None:
    with database.writing() as connection:
        connection.exec_driver_sql(statement)


def lines_of(file: Path) -> list[object]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_every_table_says_what_makes_two_of_its_rows_the_same() -> None:
    assert KEYS.keys() == {table.name for table in TABLES}
    assert all(set(names) <= set(table.columns.keys()) for table in TABLES for names in [KEYS[table.name]])


@pytest.mark.parametrize("name", FORMS)
def test_what_was_exported_comes_back_in_an_empty_database(filled, tmp_path: Path, name: str) -> None:
    written = export_file(filled, tmp_path / name)
    before = content(filled)
    assert all(written.rows[table.name] for table in TABLES)
    with open_database(tmp_path / "other.db") as other:
        report = import_file(other, tmp_path / name)
        after = content(other)
        assert upkeep.check(other).ok
    assert dict(report.new) == dict(written.rows) and not any(report.known.values())
    for row in before["implementation_sources"]:
        row.update(trusted=False, origin=f"imported from {name}")
    for row in before["profile_queue"]:
        row.update(claimed_by=None, claimed_at=None, lease_until=None, attempts=0)
    assert after == before
    assert content(filled)["profile_queue"][0]["claimed_by"] == "somebody"


@pytest.mark.parametrize("name", FORMS)
def test_a_second_import_adds_nothing(filled, tmp_path: Path, name: str) -> None:
    export_file(filled, tmp_path / name)
    before = content(filled)
    report = import_file(filled, tmp_path / name)
    assert not any(report.new.values()) and sum(report.known.values()) == sum(map(len, before.values()))
    assert report.untrusted == () and content(filled) == before
    with open_database(tmp_path / "other.db") as other:
        import_file(other, tmp_path / name)
        once = content(other)
        assert not any(import_file(other, tmp_path / name).new.values())
        assert content(other) == once
        # and back: what came from here is known here
        export_file(other, tmp_path / "back.jsonl")
    assert not any(import_file(filled, tmp_path / "back.jsonl").new.values())


def test_a_merge_adds_what_is_missing_and_ties_it_to_what_is_here(filled, make, tmp_path: Path) -> None:
    with open_database(tmp_path / "other.db") as other:
        other.ensure_graph(make.target)  # so that row ids differ
        other.ensure_graph(make.graph)
        other.add_traces([
            make.trace(make.kernel("new"), workload=make.workload(5), samples_ms=(0.5,)),
            make.trace(make.kernel(sources=(SOURCE,)), workload=make.workload(5), samples_ms=(0.25,)),
        ])  # fmt: skip
        export_file(other, tmp_path / "rows.jsonl.gz")
    report = import_file(filled, tmp_path / "rows.jsonl.gz")
    assert (report.new["benchmark_traces"], report.new["implementations"], report.new["canonical_graphs"]) == (2, 1, 0)
    found = queries.best_implementation(filled, make.graph.structural_key, make.workload(5), make.here, 1e-5)
    assert [row.implementation_name for row in found] == ["tanh_c", "new"]  # sources known here keep their trust


def test_more_rows_than_fit_a_chunk_are_merged_once(make, database, tmp_path: Path) -> None:
    moment = datetime(2026, 3, 1, tzinfo=UTC)
    database.add_traces(
        make.trace(make.kernel(f"k{n % 7}"), workload=make.workload(n % 900), samples_ms=(1.0 + n,), timestamp=moment)
        for n in range(2 * CHUNK + 7)
    )
    seen: list[tuple[int, int]] = []
    export_file(database, tmp_path / "a.jsonl.gz", lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] and seen == sorted(seen)
    with open_database(tmp_path / "other.db") as other:
        first = import_file(other, tmp_path / "a.jsonl.gz", lambda done, total: seen.append((done, total)))
        assert first.new["benchmark_traces"] == 2 * CHUNK + 7 and seen[-1][0] == seen[-1][1]
        second = import_file(other, tmp_path / "a.jsonl.gz")
        assert second.new["benchmark_traces"] == 0 and second.known["benchmark_traces"] == 2 * CHUNK + 7


def test_imported_sources_wait_for_trust_and_our_own_code_needs_none(filled, make, tmp_path: Path) -> None:
    export_file(filled, tmp_path / "rows.jsonl.gz")
    own = make.kernel(sources=(SOURCE,))
    with open_database(tmp_path / "other.db") as other:
        (waiting,) = import_file(other, tmp_path / "rows.jsonl.gz").untrusted
        assert waiting == (own.signature, "tanh_c")
        assert (own.source_hash, make.workload().key) not in queries.latest_traces(other, make.here)
        other.ensure_implementation(make.kernel(sources=(SourceRecord("k.c", "int y;", trusted=False),)))
        assert not queries.sources(other, own.signature)[0].trusted  # nobody's own text
    with open_database(tmp_path / "other.db") as other:
        other.ensure_implementation(own)  # the same text, from code that runs here already
        assert queries.sources(other, own.signature)[0].trusted
        assert (own.source_hash, make.workload().key) in queries.latest_traces(other, make.here)


def test_a_newer_schema_is_refused_with_both_versions(filled, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    export_file(filled, file)
    first, *rest = file.read_text().splitlines(keepends=True)
    file.write_text(json.dumps({**json.loads(first), "schema": "9999"}) + "\n" + "".join(rest))
    with pytest.raises(SchemaMismatch, match=f"its schema is 9999 .* knows {schema.REVISION}"):
        import_file(filled, file)
    export_file(filled, tmp_path / "rows.sqlite")
    raw = sqlite3.connect(tmp_path / "rows.sqlite")
    raw.execute("UPDATE alembic_version SET version_num = '9999'")
    raw.commit()
    raw.close()
    with pytest.raises(SchemaMismatch, match=f"its schema is 9999, this one knows {schema.REVISION}"):
        import_file(filled, tmp_path / "rows.sqlite")


def test_a_copy_of_an_older_schema_is_read_and_left_as_it_is(filled, make, tmp_path: Path) -> None:
    file = tmp_path / "old.sqlite"
    export_file(filled, file)
    make.as_of_0004(file)
    before = file.read_bytes()
    with open_database(tmp_path / "other.db") as other:
        report = import_file(other, file)
        assert report.schema == "0004" and report.new["benchmark_traces"] == 4
    assert file.read_bytes() == before


@pytest.mark.parametrize("keep", [3, 0.3, 0.9, -1])
@pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.jsonl"])
def test_a_cut_export_is_refused_and_nothing_of_it_is_stored(filled, tmp_path: Path, name: str, keep: float) -> None:
    file = tmp_path / name
    export_file(filled, file)
    data = file.read_bytes()
    file.write_bytes(data[: int(keep * len(data)) if 0 < keep < 1 else int(keep)])
    with open_database(tmp_path / "other.db") as other:
        with pytest.raises(ExportError, match=name):
            import_file(other, file)
        assert sum(upkeep.stats(other).rows.values()) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[:-2] + rows[-1:], "says that there are"),
        (lambda rows: [rows[0], ["no_table", {}], *rows[1:]], "is no row of a table"),
        (lambda rows: [rows[0], ["workloads", {"id": 1, "surprise": 1}], *rows[1:]], "'surprise'"),
        (lambda rows: [rows[0], ["workloads", {"id": 1}], *rows[1:]], "has no key"),
        (lambda rows: [rows[0], *[r for r in rows[1:-1] if r[0] != "workloads"], {"end": len(rows) - 4}], "refers to row"),
        (lambda rows: [{"format": "x"}, *rows[1:]], "is no export of a database"),
        (lambda rows: [rows[0], [rows[1][0], {**rows[1][1], "created": "yesterday"}], *rows[2:]], "has a created that is none"),
        (lambda rows: [[1, 2]], "is no export of a database"),
    ],
)  # fmt: skip
def test_a_text_that_is_no_whole_export_is_refused_with_its_line(filled, tmp_path: Path, change, message: str) -> None:
    export_file(filled, tmp_path / "rows.jsonl")
    changed = change(lines_of(tmp_path / "rows.jsonl"))
    (tmp_path / "bad.jsonl").write_text("".join(json.dumps(each) + "\n" for each in changed))
    with open_database(tmp_path / "other.db") as other:
        with pytest.raises(ExportError, match=message):
            import_file(other, tmp_path / "bad.jsonl")
        assert sum(upkeep.stats(other).rows.values()) == 0


def test_a_row_that_the_tables_refuse_rolls_everything_back(filled, tmp_path: Path) -> None:
    export_file(filled, tmp_path / "rows.jsonl")
    rows = lines_of(tmp_path / "rows.jsonl")
    last = max(i for i, row in enumerate(rows) if isinstance(row, list) and row[0] == "benchmark_traces")
    rows[last][1]["status"] = "WONDERFUL"  # type: ignore[index]
    (tmp_path / "bad.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    with open_database(tmp_path / "other.db") as other:
        with pytest.raises(ExportError, match="bad.jsonl: row 4 of benchmark_traces: trace status is 'WONDERFUL'; nothing of it"):
            import_file(other, tmp_path / "bad.jsonl")
        assert sum(upkeep.stats(other).rows.values()) == 0


def test_one_source_hash_under_two_names_is_refused(filled, make, tmp_path: Path) -> None:
    with open_database(tmp_path / "other.db") as other:
        other.ensure_graph(make.graph)
        other.add_trace(make.trace(make.kernel("another name", source_hash=make.kernel().source_hash)))
        export_file(other, tmp_path / "rows.jsonl")
    before = content(filled)
    with pytest.raises(InvalidRecord, match="'another name' is 'tanh_c' here"):
        import_file(filled, tmp_path / "rows.jsonl")
    assert content(filled) == before


def test_an_interrupted_import_leaves_nothing_and_an_interrupted_export_no_file(filled, tmp_path: Path) -> None:
    export_file(filled, tmp_path / "rows.jsonl")

    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with open_database(tmp_path / "other.db") as other:
        with pytest.raises(KeyboardInterrupt):
            import_file(other, tmp_path / "rows.jsonl", stop)
        assert sum(upkeep.stats(other).rows.values()) == 0
        assert any(import_file(other, tmp_path / "rows.jsonl").new.values())  # and ids of the lost rows are forgotten
    for name in FORMS:
        with pytest.raises(KeyboardInterrupt):
            export_file(filled, tmp_path / f"again-{name}", stop)
    assert not [file for file in tmp_path.iterdir() if "again" in file.name]


@pytest.mark.parametrize("data", [b"", b"garbage\n", b"\x1f\x8b garbage", b"SQLite format 3\0 and no more", b"\0\0\0"])
def test_a_file_of_another_kind_is_refused(database, tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(data)
    with pytest.raises((ExportError, schema_errors())) as caught:
        import_file(database, file)
    assert str(file) in str(caught.value)
    assert file.read_bytes() == data


def schema_errors() -> type[Exception]:
    from tensor_graphs.records import CorruptDatabase

    return CorruptDatabase


def test_another_programs_database_the_database_itself_and_a_missing_file_are_refused(database, tmp_path: Path) -> None:
    raw = sqlite3.connect(tmp_path / "other.sqlite")
    raw.execute("CREATE TABLE songs (id INTEGER)")
    raw.commit()
    raw.close()
    for file, message in (
        (tmp_path / "other.sqlite", "of another program"),
        (Path(database.location), "is the database itself"),
        (tmp_path / "missing", "cannot be read"),
        (tmp_path, "cannot be read"),
    ):
        with pytest.raises(ExportError, match=message):
            import_file(database, file)


def test_an_export_elsewhere_or_of_no_known_form_is_refused(database, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"name it \*.jsonl.gz or \*.sqlite"):
        export_file(database, tmp_path / "rows.csv")
    for name in ("rows.jsonl.gz", "rows.sqlite"):
        with pytest.raises(ExportError) as caught:
            export_file(database, tmp_path / "missing" / name)
        assert str(caught.value) == (
            f"{tmp_path / 'missing' / name} cannot be written: there is no folder {tmp_path / 'missing'}\n"
            "  fix: make it first, or name a file in a folder that is there"
        )


def test_of_a_damaged_database_the_error_names_the_database_and_not_the_export(make, tmp_path: Path) -> None:
    damaged, out = tmp_path / "damaged.db", tmp_path / "out.sqlite"
    with open_database(damaged) as filled:
        filled.ensure_graph(make.graph)
        filled.add_traces(make.trace(log=os.urandom(3000).hex()) for _ in range(50))
        upkeep.vacuum(filled)
    data = bytearray(damaged.read_bytes())
    for place in range(len(data) // 2 // 4096 * 4096, len(data) - 4 * 4096, 4096):  # vacuum has put the text of the views last
        data[place : place + 2048] = os.urandom(2048)
    damaged.write_bytes(data)
    with open_database(damaged) as source, pytest.raises(CorruptDatabase) as caught:
        export_file(source, out)
    message = str(caught.value)
    assert message.startswith(f"{damaged} is damaged") and f"sqlite3 {damaged} .recover" in message and ".part" not in message
    assert not list(tmp_path.glob("*out.sqlite*"))


@pytest.mark.parametrize("name", FORMS)
def test_a_file_that_is_there_is_replaced_only_when_that_is_said(filled, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    export_file(filled, file)
    before = file.read_bytes()
    with open_database(tmp_path / "empty.db") as empty:
        with pytest.raises(ExportError, match=r"is there already\n  fix: name another file, or replace it \(--force"):
            export_file(empty, file)
        assert file.read_bytes() == before

        def stop(done: int, total: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):  # as written to another file first
            export_file(empty, file, stop, replace=True)
        assert file.read_bytes() == before
        assert sum(export_file(empty, file, replace=True).rows.values()) == 0
        assert not list(tmp_path.glob("*.part")) and not list(tmp_path.glob(".*.part"))
    with open_database(tmp_path / "other.db") as other:
        assert not any(import_file(other, file).new.values())


def test_a_file_that_appears_while_an_export_is_written_is_kept(filled, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    with pytest.raises(ExportError, match="is there already"):
        export_file(filled, file, lambda done, total: file.write_text("mine"))
    assert file.read_text() == "mine"


@pytest.mark.parametrize("replace", [False, True])
def test_a_database_is_never_exported_onto_itself_by_whatever_name(make, tmp_path: Path, monkeypatch, replace: bool) -> None:
    file = tmp_path / "own.sqlite"
    with open_database(file) as own:
        own.ensure_graph(make.graph)
        own.add_trace(make.trace())
        (tmp_path / "link.sqlite").symlink_to(file)
        (tmp_path / "hard.sqlite").hardlink_to(file)
        (tmp_path / "folder").mkdir()
        monkeypatch.chdir(tmp_path)
        assert own.is_in(Path("own.sqlite-wal")) and not own.is_in(tmp_path) and not own.is_in(tmp_path / "new.sqlite")
        for name in ("own.sqlite", "folder/../own.sqlite", "link.sqlite", "hard.sqlite"):
            with pytest.raises(ExportError, match=r"is the database itself\n  fix: "):
                export_file(own, Path(name), replace=replace)
            with pytest.raises(ExportError, match="is the database itself"):
                import_file(own, Path(name))
        assert upkeep.stats(own).rows["benchmark_traces"] == 1 and upkeep.check(own).ok
    with open_database(f"sqlite:///file:{file}?uri=true") as own, pytest.raises(ExportError, match="is the database itself"):
        export_file(own, file, replace=True)


def test_a_database_in_use_is_not_replaced(filled, make, tmp_path: Path) -> None:
    with open_database(tmp_path / "busy.sqlite") as busy:  # its log stands beside it, and would be played into the new file
        busy.ensure_graph(make.graph)
        with pytest.raises(ExportError, match=r"busy.sqlite-wal says that .* is a database in use"):
            export_file(filled, tmp_path / "busy.sqlite", replace=True)
    export_file(filled, tmp_path / "busy.sqlite", replace=True)
    with open_database(tmp_path / "busy.sqlite") as copy:
        assert content(copy) == content(filled)


def test_a_source_whose_text_is_not_the_text_that_was_hashed_is_refused(filled, tmp_path: Path) -> None:
    export_file(filled, tmp_path / "rows.jsonl")
    text = (tmp_path / "rows.jsonl").read_text()
    assert text.count("int x;") == 1
    (tmp_path / "rows.jsonl").write_text(text.replace("int x;", "system(x);"))
    export_file(filled, tmp_path / "rows.sqlite")
    raw = sqlite3.connect(tmp_path / "rows.sqlite")
    raw.execute("UPDATE implementation_sources SET content = 'system(x);'")
    raw.commit()
    raw.close()
    for name in ("rows.jsonl", "rows.sqlite"):
        with open_database(tmp_path / "other.db") as other:
            with pytest.raises(ExportError, match=f"{name}: row 1 of implementation_sources: its text is not the text that"):
                import_file(other, tmp_path / name)
            assert sum(upkeep.stats(other).rows.values()) == 0
        with pytest.raises(ExportError):  # known here or not: the file is damaged
            import_file(filled, tmp_path / name)


def test_what_is_dated_in_the_future_is_refused(filled, make, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    with open_database(tmp_path / "ahead.db") as ahead:
        ahead.ensure_graph(make.graph)
        ahead.add_trace(make.trace(timestamp=now + timedelta(hours=23)))  # a clock in another time zone, say
        export_file(ahead, tmp_path / "tomorrow.jsonl")
        assert upkeep.check(ahead).ok
        second = ahead.add_trace(make.trace())
        write(ahead, "UPDATE benchmark_traces SET timestamp = '2999-01-01 00:00:00.000000' WHERE id = 2")
        assert second == 2
        export_file(ahead, tmp_path / "ahead.jsonl")
        export_file(ahead, tmp_path / "ahead.sqlite")
        (found,) = upkeep.check(ahead).problems
        assert found.startswith("row 2 of benchmark_traces: it is dated 2999-01-01T00:00:00+00:00, in the future, and the newest")
    with open_database(tmp_path / "constants.db") as constants:
        constants.add_constants(make.here, [DeviceConstant("read_bandwidth", 1e9, "byte/s")])
        write(constants, f"UPDATE device_constants SET timestamp = '{now + timedelta(hours=25):%Y-%m-%d %H:%M:%S.%f}'")
        export_file(constants, tmp_path / "constants.jsonl")
    before = content(filled)
    for name in ("ahead.jsonl", "ahead.sqlite", "constants.jsonl"):
        with pytest.raises(ExportError, match=r"is dated .* in the future, .*; nothing .*\n  fix: .*--sound-only"):
            import_file(filled, tmp_path / name)
        assert content(filled) == before
        report = import_file(filled, tmp_path / name, sound_only=True)
        assert len(report.left_out) == 1 and "in the future" in report.left_out[0]
        assert upkeep.check(filled).ok
        before = content(filled)
    assert import_file(filled, tmp_path / "tomorrow.jsonl").known["benchmark_traces"] == 1      # came with ahead.jsonl


@pytest.mark.parametrize("name", FORMS)
def test_what_is_installed_here_letter_by_letter_needs_no_trust_and_comes_out_as_it_went_in(
    filled, make, tmp_path: Path, name: str
) -> None:
    theirs = make.kernel("theirs", sources=(SourceRecord("t.c", "int y;", trusted=True),))
    filled.add_trace(make.trace(theirs))
    own = make.kernel(sources=(SOURCE,))
    asked: list[str] = []

    def installed(name: str):
        asked.append(name)
        return own if name == "tanh_c" else None

    export_file(filled, tmp_path / name)
    with open_database(tmp_path / "other.db") as other:
        report = import_file(other, tmp_path / name, installed=installed)
        assert (report.installed, report.untrusted) == (((own.signature, "tanh_c"),), ((theirs.signature, "theirs"),))
        assert sorted(asked) == ["tanh_c", "theirs"]
        assert (own.source_hash, make.workload().key) in queries.latest_traces(other, make.here)
        assert (theirs.source_hash, make.workload().key) not in queries.latest_traces(other, make.here)
        assert queries.waiting_for_trust(other) == ((theirs.signature, "theirs"),)
        assert upkeep.trust(other, theirs.signature) == 1
        export_file(other, tmp_path / "again.jsonl")
    export_file(filled, tmp_path / "first.jsonl")
    first, again = (lines_of(tmp_path / each)[1:] for each in ("first.jsonl", "again.jsonl"))
    for rows in (first, again):
        for table, row in (each for each in rows if isinstance(each, list)):
            if table == "profile_queue":  # who holds a request is no content
                for column in ("claimed_by", "claimed_at", "lease_until", "attempts"):
                    row.pop(column, None)
            if table == "implementation_sources" and row["path"] == "t.c":  # nor where code came from
                assert row.pop("origin") == ("" if rows is first else f"imported from {name}")
    assert first == again


def test_another_build_of_an_installed_name_waits_for_trust(filled, make, tmp_path: Path) -> None:
    export_file(filled, tmp_path / "rows.jsonl")
    with open_database(tmp_path / "other.db") as other:
        another = make.kernel(sources=(SOURCE,), source_hash="another")
        report = import_file(other, tmp_path / "rows.jsonl", installed=lambda name: another)
        assert report.installed == () and [name for _, name in report.untrusted] == ["tanh_c"]


@pytest.mark.parametrize("later", [False, True])
def test_another_text_under_the_signature_of_what_is_installed_gives_way_to_it(filled, make, tmp_path: Path, later: bool) -> None:
    own = make.kernel(sources=(SourceRecord("k.c", "int z;", trusted=True),))
    export_file(filled, tmp_path / "rows.jsonl")
    with open_database(tmp_path / "other.db") as other:
        report = import_file(other, tmp_path / "rows.jsonl", installed=lambda name: None if later else own)
        assert bool(report.untrusted) == later
        other.ensure_implementation(own)
        assert [(s.content, s.trusted) for s in queries.sources(other, own.signature)] == [("int z;", True)]
        assert (own.source_hash, make.workload().key) in queries.latest_traces(other, make.here)


FORGED = {
    "its key is not of its fields": ("environments", "hardware_name", "Another CPU"),
    "its key is not of its fields ": ("workloads", "axes_json", {"batch": 2}),
    "its size batch is -1": ("workloads", "axes_json", {"batch": -1}),
    "its signature is not of its fields": ("implementations", "source_hash", "another"),
    "max_relative_error of 'row' is -1": ("benchmark_traces", "max_relative_error", -1.0),
    "its max_relative_error is no number": ("benchmark_traces", "max_relative_error", "nan"),
    "median_ms of 'row' is 0, and its samples go from 1 to 1.2": ("benchmark_traces", "median_ms", 0.0),
    "median_ms of 'row' is -1": ("benchmark_traces", "median_ms", -1.0),
    "speedup_factor of 'row' is 33, and baseline_ms": ("benchmark_traces", "speedup_factor", 33.0),
    "4 samples were announced, 3 are there": ("benchmark_traces", "sample_count", 4),
    "its value is inf": ("device_constants", "value", "inf"),
}


@pytest.mark.parametrize("why", FORGED)
def test_what_cannot_be_is_refused_and_left_out_and_check_finds_the_same(filled, tmp_path: Path, why: str) -> None:
    table, column, value = FORGED[why]
    export_file(filled, tmp_path / "rows.jsonl")
    rows = lines_of(tmp_path / "rows.jsonl")
    number, changed = next((row[1]["id"], row[1]) for row in rows if isinstance(row, list) and row[0] == table)
    changed[column] = value
    (tmp_path / "bad.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    said = f"row {number} of {table}: {why.strip()}"
    with open_database(tmp_path / "other.db") as other:
        with pytest.raises(ExportError, match=f"bad.jsonl: {said}"):
            import_file(other, tmp_path / "bad.jsonl")
        report = import_file(other, tmp_path / "bad.jsonl", sound_only=True)
        assert any(line.startswith(said) for line in report.left_out) and upkeep.check(other).ok
    if value == "nan" or (column == "median_ms" and value < 0):
        return                                                      # no column of SQLite takes it
    stored = json.dumps(value) if isinstance(value, dict) else "9e999" if value == "inf" else value
    write(filled, f"UPDATE {table} SET {column} = {stored!r} WHERE id = {number}".replace("'9e999'", "9e999"))
    assert any(line.startswith(said) for line in upkeep.check(filled).problems)
    assert upkeep.remove_unsound(filled)[table] >= 1 and upkeep.check(filled).ok


def test_a_graph_whose_text_is_of_another_key_is_refused_with_all_that_is_about_it(filled, tmp_path: Path) -> None:
    def reads(text: str, json: str, key: str) -> str | None:
        return "its text is of another graph" if key == "tanh-key" else None

    export_file(filled, tmp_path / "rows.jsonl")
    with open_database(tmp_path / "other.db") as other:
        with pytest.raises(ExportError, match="row 1 of canonical_graphs: its text is of another graph"):
            import_file(other, tmp_path / "rows.jsonl", reads=reads)
        report = import_file(other, tmp_path / "rows.jsonl", reads=reads, sound_only=True)
        assert any("it refers to row 1 of canonical_graphs, which is left out" in line for line in report.left_out)
        assert report.new["benchmark_traces"] == 0 and upkeep.check(other, reads=reads).ok
    assert "row 1 of canonical_graphs: its text is of another graph" in upkeep.check(filled, reads=reads).problems
    assert upkeep.remove_unsound(filled, reads=reads)["benchmark_traces"] == 4
    assert upkeep.check(filled, reads=reads).ok


@pytest.mark.parametrize(("number", "fix"), [(errno.ENOSPC, "free space there"), (errno.EROFS, "choose a file in a folder")])
def test_an_export_that_cannot_be_written_names_the_file_and_what_helps(filled, tmp_path: Path, monkeypatch, number: int,
                                                                        fix: str) -> None:
    def refuse(*given: object, **more: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "unlink", refuse)                     # of a read-only file system, even what is not there
    monkeypatch.setattr(portable, "_write_text", refuse)
    with pytest.raises(ExportError, match=f"rows.jsonl cannot be written: .*\n  fix: {fix}"):
        export_file(filled, tmp_path / "rows.jsonl")
