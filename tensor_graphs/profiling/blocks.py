"""blocks: runs that are timed in a row, as a worker claims them, and whether the claims can be true.

A worker says when a block begins and when it ends, and what it claims of the runs in between. The judge has its own clock for the
first and the last of these words. Two things must hold, or the times are IMPLAUSIBLE:

- What the worker's clock counted, runs and the work between them, is no less than SHARE of what the judge saw pass (less SLACK).
  A clock that was slowed down, or work that was put off, shows. A judge that was kept from its processor saw too much pass, so one
  block must do, and what is in doubt is measured again in longer blocks.
- What the calls of a run took is no less than the run took, but for the walk over the plan's instructions, whose price is known
  from runs in which nothing is called. A watch that was tampered with shows.

The socket between the two takes some 0.1 ms, so a block lasts 10 ms at least.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Name = Literal["cold", "plain", "hot"]

SHARE = 0.6
SLACK = 5e-3
LEAST_SECONDS = 0.01

WALK_SHARE, WALK_SLACK, WALKS = 0.25, 5e-5, 4.0
"""a median run may take a quarter, 50 µs and four walks longer than its calls; a cold walk takes longer than a warm one"""


@dataclass
class Block:
    """One block. wall: seconds on the judge's clock; counted: on the worker's, everything in between; whole: of each run; calls: of
    the calls in each run; reference: of the reference stream before each run; walk: of a run that calls nothing."""

    name: Name
    wall: float
    counted: float
    walk: float
    whole: list[float] = field(default_factory=list)
    calls: list[float] = field(default_factory=list)
    reference: list[float] = field(default_factory=list)

    @staticmethod
    def of(said: Mapping[str, Any], wall: float) -> Block:
        return Block(said["name"], wall, said["counted"], said["walk"], said["whole"], said["calls"], said["reference"])

    def late(self) -> str:
        """How much more time passed outside than inside; "" when it did not."""
        if self.counted >= SHARE * self.wall - SLACK:
            return ""
        return (f"a block of {len(self.whole)} {self.name} runs took {self.wall * 1e3:.3g} ms on the judge's clock, "
                f"and {self.counted * 1e3:.3g} ms as the worker counts")

    def contradicts_itself(self) -> str:
        """Why the claims do not go together; "" when they do."""
        whole, calls = statistics.median(self.whole), statistics.median(self.calls)
        if not whole <= calls * (1 + WALK_SHARE) + WALKS * self.walk + WALK_SLACK:
            return (f"{self.name} runs took {whole * 1e6:.3g} µs, the calls in them {calls * 1e6:.3g} µs as claimed, and the walk "
                    f"from one to the next takes {self.walk * 1e6:.3g} µs")
        if sum(self.whole) > self.counted + 1e-6 or min(self.calls) < 0:
            return f"the {self.name} runs of a block took longer than the block"
        return ""


def implausible(blocks: Sequence[Block]) -> str:
    """Why these blocks cannot have happened as claimed; "" when they can."""
    names = [b.name for b in blocks]
    if names not in (["cold", "plain", "cold", "hot"], ["cold", "cold", "hot"]):
        return f"the blocks of runs were {', '.join(names) or 'none'}"
    late = [b.late() for b in blocks if b.name != "plain"]
    return late[0] if all(late) else next((why for b in blocks if (why := b.contradicts_itself())), "")
