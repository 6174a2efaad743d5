"""report: the results of an import or an export, as text (`lines`) and as JSON (`to_json`)."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import Any

MOST_LISTED = 10  # items of each kind in `lines`; to_json has all


@dataclass
class DatasetImport:
    """Result of an import. files_*: paths of the files that are new, changed, or in the database already. records: new ones, by
    kind; records_known: those whose row was in the database, by kind.

    understood: definitions whose reference was converted to a graph. opaque: the other definitions, with the reason. kept_whole:
    records stored as JSON, "path:line", with the reason. unknown_definitions: named by records, but defined nowhere.
    unknown_solutions: named by traces, but found nowhere. left_out: files that are no part of a data set. missing_inputs:
    safetensors files that workloads name and the folder lacks.
    """

    dataset: str
    folder: str
    files_new: list[str] = field(default_factory=list)
    files_changed: list[str] = field(default_factory=list)
    files_known: list[str] = field(default_factory=list)
    records: Counter[str] = field(default_factory=Counter)
    records_known: Counter[str] = field(default_factory=Counter)
    understood: list[str] = field(default_factory=list)
    opaque: dict[str, str] = field(default_factory=dict)
    kept_whole: dict[str, str] = field(default_factory=dict)
    unknown_definitions: list[str] = field(default_factory=list)
    unknown_solutions: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    missing_inputs: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        counts = {"records": dict(self.records), "records_known": dict(self.records_known)}
        return {**asdict(replace(self, records=Counter(), records_known=Counter())), **counts}  # asdict breaks a Counter

    def lines(self) -> list[str]:
        """Return a summary, the files first."""
        out = [
            f"data set {self.dataset!r} from {self.folder}",
            f"files: {len(self.files_new)} new, {len(self.files_changed)} changed, {len(self.files_known)} already there",
            f"records: {_counts(self.records)}" + (
                f" (already there: {_counts(self.records_known)})" if self.records_known else ""),
        ]
        if self.understood or self.opaque:
            out.append(f"references: {len(self.understood)} became graphs, {len(self.opaque)} are opaque")
        out += _listed("opaque", [f"{name}: {reason}" for name, reason in self.opaque.items()])
        out += _listed("kept whole", [f"{place}: {reason}" for place, reason in self.kept_whole.items()])
        out += _listed("definitions that the data set lacks", self.unknown_definitions)
        out += _listed("solutions that the data set lacks", self.unknown_solutions)
        out += _listed("input files that the folder lacks", self.missing_inputs)
        return out + _listed("files left out", self.left_out)


@dataclass
class DatasetExport:
    """Result of an export. files: paths of the files written. from_text: number of lines written in their original text.
    from_columns: number of lines whose text was deleted. changed: "path:line" of lines whose row has changed. inputs: safetensors
    files that the workloads name and the folder lacks: they are not in the database, copy them from the source of the data set."""

    folder: str
    files: list[str] = field(default_factory=list)
    from_text: int = 0
    from_columns: int = 0
    changed: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        """Return a summary, the files first."""
        return [f"{len(self.files)} files to {self.folder}",
                f"lines: {self.from_text} as they were read, {self.from_columns} from columns alone, {len(self.changed)} changed",
                *_listed("changed", self.changed), *_listed("input files to copy there", self.inputs)]


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}{'' if kind in ('blank', 'whole') else 's'}" for kind, count in counter.items()) or "none"


def _listed(title: str, items: list[str]) -> list[str]:
    if not items:
        return []
    rest = [f"    … {len(items) - MOST_LISTED} more"] if len(items) > MOST_LISTED else []
    return [f"{title} ({len(items)}):", *(f"    {item}" for item in items[:MOST_LISTED]), *rest]
