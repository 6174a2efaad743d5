"""report: statistics of a saturation, rule by rule."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class RuleReport:
    """Counts for one rule. matches: new matches; applied: those with a new result; rejected: those at which the rule's condition
    did not hold; starved: rounds that left matches because a budget was used up."""

    matches: int = 0
    applied: int = 0
    rejected: int = 0
    starved: int = 0
    seconds: float = 0.0


@dataclass
class Report:
    """Statistics of one run, by level. `saturated`: no rule finds more at this level, and none was starved."""

    rules: dict[str, RuleReport] = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)
    saturated: dict[str, bool] = field(default_factory=dict)
    stopped: str = ""
    seconds: float = 0.0
    e_nodes: int = 0
    classes: int = 0

    def of(self, rule: str) -> RuleReport:
        return self.rules.setdefault(rule, RuleReport())

    def add(self, other: Report) -> None:
        """Add another run: counts are summed, rounds are the larger number, and a level is saturated only if it is in both."""
        for name, row in other.rules.items():
            mine = self.of(name)
            for field_name, value in vars(row).items():
                setattr(mine, field_name, getattr(mine, field_name) + value)
        for level, rounds in other.rounds.items():
            self.rounds[level] = max(self.rounds.get(level, 0), rounds)
            self.saturated[level] = self.saturated.get(level, True) and other.saturated[level]
        self.stopped = self.stopped or other.stopped
        self.seconds, self.e_nodes = self.seconds + other.seconds, self.e_nodes + other.e_nodes
        self.classes += other.classes

    @property
    def unattributed(self) -> float:
        """Return the seconds outside of rules: rebuilding and indexing."""
        return self.seconds - sum(r.seconds for r in self.rules.values())

    def as_json(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "unattributed": self.unattributed, "e_nodes": self.e_nodes, "classes": self.classes,
                "rounds": self.rounds, "saturated": self.saturated, "stopped": self.stopped,
                "rules": {name: vars(r) for name, r in sorted(self.rules.items()) if r.matches or r.starved}}

    def show(self) -> str:
        """Return a table for a person: the rules that matched, by how often they applied."""
        lines = [f"{'rule':44} {'matches':>8} {'applied':>8} {'rejected':>8} {'starved':>8} {'ms':>8}"]
        for name, r in sorted(self.rules.items(), key=lambda item: (-item[1].applied, item[0])):
            if r.matches or r.starved:
                lines.append(f"{name:44} {r.matches:8} {r.applied:8} {r.rejected:8} {r.starved:8} {r.seconds * 1e3:8.1f}")
        lines.append(f"{'unattributed':44} {'':8} {'':8} {'':8} {'':8} {self.unattributed * 1e3:8.1f}")
        return "\n".join([*lines, self.summary()])

    def summary(self) -> str:
        """Return a line with the size, the time, whether each level is saturated, and the reason for an early stop."""
        state = ", ".join(f"{level}: {'saturated' if done else 'not saturated'} after {self.rounds[level]} rounds"
                          for level, done in self.saturated.items())
        stopped = f"; stopped: {self.stopped}" if self.stopped else ""
        return f"{self.e_nodes} e-nodes in {self.classes} classes, {self.seconds:.3f} s; {state}{stopped}"
