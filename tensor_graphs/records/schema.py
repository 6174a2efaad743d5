"""schema: the tables of the benchmark database as SQLAlchemy models; docs/database.md explains them to people.

New databases are created from the models (and views.py), and so is the first migration. After a release, a change takes these
steps: edit the model, write the tables of the release into that migration, add the change as migrations/versions/vNNNN_*.py, and
set REVISION to its number. A test compares both results.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    DateTime,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from tensor_graphs.records.rows import IMPLEMENTATION_TYPES, NUMERIC_CLASSES, STATUSES, TRACE_KINDS

REVISION = "0007"  # the newest migration; only a database of an older revision is opened by Alembic
UNRELEASED = ("0001", "0002", "0003", "0004")  # of trees before the first release; only the last has the columns of today

KEY = String(64)  # sha256, hexadecimal

# The kinds of imported line that have a row of their own, and which column names it; the other kinds: a blank line, and
# a record stored as text, because no table has columns for it.
LINE_ROWS = {"definition": "definition_id", "solution": "implementation_id", "workload": "workload_id", "trace": "trace_id"}
LINE_KINDS = (*LINE_ROWS, "blank", "whole")
# SQLite numbers rows by itself only for a column declared exactly INTEGER.
ROW = BigInteger().with_variant(Integer(), "sqlite")


class DamagedValue(Exception):
    """A stored value that its column cannot hold, as another program wrote it. `Database` raises CorruptDatabase for it."""


class _Checked(TypeDecorator[Any]):
    """A column type that raises DamagedValue for stored values it cannot read, as SQLite lets anything into a column."""

    impl: Any = DateTime
    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: Any) -> Callable[[Any], Any] | None:
        read = super().result_processor(dialect, coltype)

        def checked(value: Any) -> Any:
            try:
                return value if read is None else read(value)
            except (AttributeError, RecursionError, TypeError, ValueError) as error:
                raise DamagedValue(f"a value cannot be read: {str(value)[:80]!r}") from error

        return checked


class JsonObject(_Checked):
    """A JSON object, as a dict."""

    impl = JSON
    cache_ok = True
    kind: type = dict

    def coerce_compared_value(self, op: Any, value: Any) -> Any:
        return self.impl_instance.coerce_compared_value(op, value)  # what SQLAlchemy asks of a type around JSON

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        if value is not None and not isinstance(value, self.kind):
            raise TypeError(f"a JSON {self.kind.__name__} is needed")
        return value


class JsonList(JsonObject):
    """A JSON array, as a list."""

    cache_ok = True
    kind = list


class UtcDateTime(_Checked):
    """An aware datetime. It is stored in UTC without a zone (in SQLite as text that sorts by time) and returned aware."""

    impl = DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.replace(tzinfo=UTC)


def _in(column: str, words: tuple[str, ...]) -> str:
    return f"{column} IN ({', '.join(repr(word) for word in words)})"


TRACE_KIND_CHECK = _in("kind", TRACE_KINDS)


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s", "uq": "uq_%(table_name)s_%(column_0_N_name)s",
                           "ck": "ck_%(table_name)s_%(constraint_name)s", "fk": "fk_%(table_name)s_%(column_0_name)s",
                           "pk": "pk_%(table_name)s"}
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {datetime: UtcDateTime, dict[str, Any]: JsonObject, list[Any]: JsonList}


class GraphRow(Base):
    """A canonical graph: a graph without names."""

    __tablename__ = "canonical_graphs"
    id: Mapped[int] = mapped_column(ROW, primary_key=True)
    human_name: Mapped[str] = mapped_column(String(200))
    structural_key: Mapped[str] = mapped_column(KEY, unique=True)
    text: Mapped[str] = mapped_column(Text)
    json: Mapped[str] = mapped_column(Text)
    created: Mapped[datetime]


class DefinitionRow(Base):
    """A name, with names for axes, bound to a canonical graph; for imported definitions also signature and reference."""

    __tablename__ = "definitions"
    id: Mapped[int] = mapped_column(ROW, primary_key=True)
    canonical_graph_id: Mapped[int] = mapped_column(ForeignKey("canonical_graphs.id"), index=True)
    name: Mapped[str] = mapped_column(String(200))
    axes: Mapped[dict[str, Any]]
    description: Mapped[str] = mapped_column(Text)
    tags: Mapped[list[Any]]
    verbatim: Mapped[str | None] = mapped_column(Text)
    created: Mapped[datetime]
    op_type: Mapped[str | None] = mapped_column(String(100), index=True)
    inputs: Mapped[dict[str, Any] | None]
    outputs: Mapped[dict[str, Any] | None]
    constraints: Mapped[list[Any] | None]
    reference: Mapped[str | None] = mapped_column(Text)
    __table_args__ = (UniqueConstraint("name", "canonical_graph_id"),)


class Implementation(Base):
    """A kernel (code) or a recipe (another graph), which computes a canonical graph; a kernel may compute many."""

    __tablename__ = "implementations"
    id: Mapped[int] = mapped_column(ROW, primary_key=True)
    signature: Mapped[str] = mapped_column(KEY, unique=True)
    type: Mapped[str] = mapped_column(String(16))
    canonical_graph_id: Mapped[int | None] = mapped_column(ForeignKey("canonical_graphs.id"), index=True)
    recipe_graph_id: Mapped[int | None] = mapped_column(ForeignKey("canonical_graphs.id"), index=True)
    name: Mapped[str] = mapped_column(String(200), index=True)
    backend: Mapped[str] = mapped_column(String(64))
    source_hash: Mapped[str] = mapped_column(String(128), index=True)
    numeric_class: Mapped[str | None] = mapped_column(String(16))
    requirements: Mapped[dict[str, Any]]
    verbatim: Mapped[str | None] = mapped_column(Text)
    created: Mapped[datetime]
    author: Mapped[str | None] = mapped_column(String(200), index=True)
    description: Mapped[str | None] = mapped_column(Text)
    __table_args__ = (CheckConstraint(_in("type", IMPLEMENTATION_TYPES), name="type"),
                      CheckConstraint(f"numeric_class IS NULL OR {_in('numeric_class', NUMERIC_CLASSES)}", name="numeric_class"),
                      CheckConstraint("(type = 'GRAPH_RECIPE') = (recipe_graph_id IS NOT NULL)", name="recipe_has_target"))


class ImplementationSource(Base):
    """One source file of an implementation, verbatim; code with an untrusted file is never chosen or claimed for profiling."""

    __tablename__ = "implementation_sources"
    id: Mapped[int] = mapped_column(ROW, primary_key=True)
    implementation_id: Mapped[int] = mapped_column(ForeignKey("implementations.id", ondelete="CASCADE"))
    path: Mapped[str] = mapped_column(Text)
    content: Mapped[str] = mapped_column(Text)
    content_sha256: Mapped[str] = mapped_column(KEY)
    language: Mapped[str] = mapped_column(String(32))
    origin: Mapped[str] = mapped_column(Text)
    trusted: Mapped[bool] = mapped_column(Boolean)
    __table_args__ = (
        UniqueConstraint("implementation_id", "path"),
        # Nearly empty, so "is it untrusted?" never reads a row, whose content fills pages.
        Index("ix_implementation_sources_untrusted", "implementation_id",
              sqlite_where=text("trusted IS 0"), postgresql_where=text("trusted IS false")),
    )  # fmt: skip


class RecipeSearch(Base):
    """Result of a search for recipes (graphs that mean the same) in one graph: its parts, and their recipes.

    key: of the graph and of the code that searches. found: for each part the numbers of its operands, outputs and nodes in the
    graph, and the signatures of its implementations of type GRAPH_RECIPE. A reader compares all of it with the graph and those.
    """

    __tablename__ = "recipe_searches"
    id: Mapped[int] = mapped_column(ROW, primary_key=True)
    key: Mapped[str] = mapped_column(KEY, unique=True)
    found: Mapped[list[Any]]
    created: Mapped[datetime]


class EnvironmentRow(Base):
    """An environment: the hardware, and the software of one backend."""

    __tablename__ = "environments"
    id: Mapped[int] = mapped_column(ROW, primary_key=True)
    key: Mapped[str] = mapped_column(KEY, unique=True)
    hardware_name: Mapped[str] = mapped_column(String(200), index=True)
    memory_bytes: Mapped[int] = mapped_column(BigInteger)
    platform: Mapped[str] = mapped_column(String(100))
    backend: Mapped[str] = mapped_column(String(64))
    libs: Mapped[dict[str, Any]]
    hardware: Mapped[dict[str, Any]]
    created: Mapped[datetime]


class Workload(Base):
    """Concrete axes and inputs for one canonical graph."""

    __tablename__ = "workloads"
    id: Mapped[int] = mapped_column(ROW, primary_key=True)
    key: Mapped[str] = mapped_column(KEY, unique=True)
    canonical_graph_id: Mapped[int] = mapped_column(ForeignKey("canonical_graphs.id"), index=True)
    axes_hash: Mapped[str] = mapped_column(KEY)
    axes_json: Mapped[dict[str, Any]]
    input_descriptors: Mapped[list[Any]]
    created: Mapped[datetime]


class BenchmarkTrace(Base):
    """One measurement. Rows are only ever added, as slow and failed kernels are evidence too."""

    __tablename__ = "benchmark_traces"
    id: Mapped[int] = mapped_column(ROW, primary_key=True)
    implementation_id: Mapped[int] = mapped_column(ForeignKey("implementations.id"))
    workload_id: Mapped[int] = mapped_column(ForeignKey("workloads.id"))
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"))
    kind: Mapped[str] = mapped_column(String(16))
    status: Mapped[str] = mapped_column(String(32))
    samples_ms: Mapped[list[Any]]
    sample_count: Mapped[int]
    median_ms: Mapped[float | None] = mapped_column(Float(53))
    spread: Mapped[float | None] = mapped_column(Float(53))
    max_relative_error: Mapped[float | None] = mapped_column(Float(53))
    p999_relative_error: Mapped[float | None] = mapped_column(Float(53))
    norm_error: Mapped[float | None] = mapped_column(Float(53))
    max_absolute_error: Mapped[float | None] = mapped_column(Float(53))
    tolerance: Mapped[float | None] = mapped_column(Float(53))
    baseline: Mapped[str] = mapped_column(String(200))
    baseline_ms: Mapped[float | None] = mapped_column(Float(53))
    speedup_factor: Mapped[float | None] = mapped_column(Float(53))
    seed: Mapped[int | None] = mapped_column(BigInteger)
    timer: Mapped[str] = mapped_column(String(64))
    verifier: Mapped[str] = mapped_column(String(64))
    timestamp: Mapped[datetime]
    full_log: Mapped[bytes | None] = mapped_column(LargeBinary)
    conditions: Mapped[dict[str, Any]]
    verbatim: Mapped[str | None] = mapped_column(Text)
    __table_args__ = (
        CheckConstraint(_in("status", STATUSES), name="status"),
        CheckConstraint(TRACE_KIND_CHECK, name="kind"),
        CheckConstraint("median_ms >= 0", name="median_ms"),
        CheckConstraint("status <> 'PASSED' OR kind = 'verify' OR median_ms IS NOT NULL", name="passed_has_time"),
        # "What is known here?" is one range of this index, in order, without touching the rows, whose samples and logs
        # fill pages: 1.9 ms for 1000 traces, 4.3 ms with the first four columns alone.
        Index("ix_benchmark_traces_here", "environment_id", "workload_id", "implementation_id", "timestamp", "id",
              "kind", "status", "verifier", "max_relative_error", "tolerance", "median_ms"),
        Index("ix_benchmark_traces_history", "implementation_id", "timestamp", "id", "environment_id"),
        Index("ix_benchmark_traces_workload", "workload_id"),
        Index("ix_benchmark_traces_failures", "timestamp", "id",
              sqlite_where=text("status <> 'PASSED'"), postgresql_where=text("status <> 'PASSED'")),
    )  # fmt: skip


class ImportedFile(Base):
    """One file of an imported data set, as of its last import; its ImportedLine rows have its content, in order."""

    __tablename__ = "imported_files"
    id: Mapped[int] = mapped_column(ROW, primary_key=True)
    dataset: Mapped[str] = mapped_column(String(200))
    path: Mapped[str] = mapped_column(Text)
    sha256: Mapped[str] = mapped_column(KEY)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    imported_at: Mapped[datetime]
    __table_args__ = (UniqueConstraint("dataset", "path"),)


class ImportedLine(Base):
    """One record of an imported file, and the row that holds its content; several lines may share a row.

    rest: whatever that row has no column for (unknown keys, which keys were absent, how a value was spelled), as JSON. verbatim:
    the text itself, line ending included; an export uses it as long as it agrees with the columns.
    """

    __tablename__ = "imported_lines"
    id: Mapped[int] = mapped_column(ROW, primary_key=True)
    file_id: Mapped[int] = mapped_column(ForeignKey("imported_files.id", ondelete="CASCADE"))
    number: Mapped[int]
    kind: Mapped[str] = mapped_column(String(16))
    definition: Mapped[str | None] = mapped_column(String(200), index=True)
    definition_id: Mapped[int | None] = mapped_column(ForeignKey("definitions.id", ondelete="CASCADE"), index=True)
    implementation_id: Mapped[int | None] = mapped_column(ForeignKey("implementations.id", ondelete="CASCADE"), index=True)
    workload_id: Mapped[int | None] = mapped_column(ForeignKey("workloads.id", ondelete="CASCADE"), index=True)
    trace_id: Mapped[int | None] = mapped_column(ForeignKey("benchmark_traces.id", ondelete="CASCADE"), index=True)
    rest: Mapped[str | None] = mapped_column(Text)
    verbatim: Mapped[str | None] = mapped_column(Text)
    __table_args__ = (
        CheckConstraint(_in("kind", LINE_KINDS), name="kind"),
        *(CheckConstraint(f"({column} IS NOT NULL) = (kind = '{kind}')", name=f"{kind}_row") for kind, column in LINE_ROWS.items()),
        Index("ix_imported_lines_file", "file_id", "number"),
    )


class ProfileQueue(Base):
    """Requests that are not measured yet. A claim is a lease, which expires by itself if its worker dies."""

    __tablename__ = "profile_queue"
    id: Mapped[int] = mapped_column(ROW, primary_key=True)
    implementation_id: Mapped[int] = mapped_column(ForeignKey("implementations.id", ondelete="CASCADE"))
    workload_id: Mapped[int] = mapped_column(ForeignKey("workloads.id", ondelete="CASCADE"))
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id", ondelete="CASCADE"))
    priority: Mapped[float] = mapped_column(Float(53))
    reason: Mapped[str] = mapped_column(Text)
    requested_at: Mapped[datetime]
    claimed_by: Mapped[str | None] = mapped_column(String(200))
    claimed_at: Mapped[datetime | None]
    lease_until: Mapped[datetime | None]
    attempts: Mapped[int]
    last_error: Mapped[str] = mapped_column(Text)
    __table_args__ = (UniqueConstraint("implementation_id", "workload_id", "environment_id"),
                      CheckConstraint("(claimed_by IS NULL) = (lease_until IS NULL)", name="claim_has_lease"),
                      Index("ix_profile_queue_next", "environment_id", "priority", "id"),
                      Index("ix_profile_queue_workload_id", "workload_id"))


class DeviceConstantRow(Base):
    """One measured property of a device in one environment; of several rows of a name the newest counts."""

    __tablename__ = "device_constants"
    id: Mapped[int] = mapped_column(ROW, primary_key=True)
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"))
    device: Mapped[str] = mapped_column(String(32))
    name: Mapped[str] = mapped_column(String(100))
    value: Mapped[float] = mapped_column(Float(53))
    unit: Mapped[str] = mapped_column(String(32))
    timestamp: Mapped[datetime]
    __table_args__ = (Index("ix_device_constants_name", "environment_id", "device", "name", "timestamp"),)
