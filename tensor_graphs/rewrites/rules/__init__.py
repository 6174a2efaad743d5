"""rules: equations as data; one file per topic, each with a RuleTable (and REFUSED, tempting rules that are wrong).

tests/rewrites/test_admission.py checks each rule's numeric class.
"""

from __future__ import annotations

from tensor_graphs.rewrites.attention_masks import ATTENDING
from tensor_graphs.rewrites.composites import Expansion, Recognition
from tensor_graphs.rewrites.constants import Folding
from tensor_graphs.rewrites.gather_as_slice import CountingIndices
from tensor_graphs.rewrites.merge_constants import Collecting
from tensor_graphs.rewrites.rule import Refused, Rewrite, Rule
from tensor_graphs.rewrites.rules import (
    algebra,
    attention,
    data_movement,
    elementwise,
    identities,
    joined_products,
    products,
    softmax,
    statistics,
)
from tensor_graphs.rewrites.user_rules import user_rules

TABLES = (identities.TABLE, data_movement.TABLE, elementwise.TABLE, algebra.TABLE, products.TABLE, joined_products.TABLE,
          softmax.TABLE, attention.TABLE, statistics.TABLE)

RULES: tuple[Rule, ...] = tuple(row for table in TABLES for row in table)
"""All rules that are given by patterns."""

REFUSED: tuple[Refused, ...] = (*identities.REFUSED, *algebra.REFUSED, *data_movement.REFUSED, *softmax.REFUSED)

KNOWN: tuple[Rewrite, ...] = (Folding(), Collecting(), CountingIndices())
"""Rewrites that no pattern expresses: folding of constants, combining of constants in chains, gathers by consecutive indices."""

SHRINKING: tuple[Rewrite, ...] = (
    *(r for table in (identities.TABLE, data_movement.TABLE, elementwise.TABLE, algebra.TABLE) for r in table
      if not r.expanding and not r.assuming and not r.option and r not in algebra.ASSOCIATING), *KNOWN)
"""Rewrites that make a graph smaller, or bring views and constants together; recognition is not among them. Association is left
out: it saves no step except with constants, which Collecting finds in one walk."""

SIMPLIFYING: tuple[Rewrite, ...] = (*SHRINKING, Recognition())
"""Rewrites that a simplification runs."""

ALL: tuple[Rewrite, ...] = (*(r for r in RULES if not r.assuming and not r.option), *KNOWN, *ATTENDING, Expansion(),
                            Recognition())

OPTIONS: tuple[str, ...] = tuple(dict.fromkeys(r.option for r in RULES if r.option))


def allowed(assuming: tuple[str, ...] = (), options: tuple[str, ...] = ()) -> tuple[Rewrite, ...]:
    """Return the rules whose assumptions are all in `assuming`, with only the groups in `options`; user-registered rules last."""
    every = (*ALL, *(r for r in RULES if r.assuming or r.option), *user_rules())
    return tuple(r for r in every if set(r.assuming) <= set(assuming) and getattr(r, "option", "") in ("", *options))
