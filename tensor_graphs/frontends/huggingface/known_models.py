"""known_models: the families that load, each with a short description derived from the facts of its default configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tensor_graphs.frontends.huggingface.config import read_family
from tensor_graphs.frontends.huggingface.families import FAMILIES
from tensor_graphs.frontends.huggingface.user_families import OWN
from tensor_graphs.frontends.json_settings import Section
from tensor_graphs.models.transformer import Facts, TensorNames


@dataclass(frozen=True)
class KnownModel:
    """A family that loads. kind: its model_type in config.json; like: published models; facts: of its default configuration."""

    kind: str
    encoder: bool
    like: str
    facts: Facts
    names: TensorNames

    @property
    def said(self) -> tuple[str, ...]:
        """Facts that distinguish this family, a few words each."""
        return tuple(_said(self.facts, self.names, self.encoder))


def known_models() -> tuple[KnownModel, ...]:
    """Return all families, user-registered ones too: decoders, then encoders, each sorted by name."""
    models = []
    for row in {**FAMILIES, **{row.name: row for row, _ in OWN.values()}}.values():
        config = read_family(Section({}, Path(row.name)), row)
        models.append(KnownModel(row.name, row.encoder, row.like, config.facts, config.names))
    return tuple(sorted(models, key=lambda model: (model.encoder, model.kind)))


def _said(facts: Facts, names: TensorNames, encoder: bool) -> Iterator[str]:
    norms = {"before": names.attention_in, "after": names.attention_out, "on the sum": names.attention_sum}
    yield f"{facts.norm} norm {' and '.join(where for where, name in norms.items() if name)}"
    if facts.parallel:
        yield "parallel blocks"
    yield f"{'gated ' if names.gate else ''}{facts.activation}"
    ropes = {layer.rope for layer in facts.layers if layer.rope}
    if ropes:
        all_layers = "" if all(layer.rope for layer in facts.layers) else " in some layers"
        yield f"rope {' and '.join(f'{theta:g}' for theta in sorted({rope.theta for rope in ropes}))}{all_layers}"
    if facts.positions:
        yield "learnt positions"
    if facts.buckets:
        yield "relative positions"
    windows = [layer.window for layer in facts.layers if layer.window]
    if windows:
        some = "" if len(windows) == len(facts.layers) else f" in {len(windows)} of {len(facts.layers)} layers"
        yield f"windows of {max(windows)}{some}"
    if names.q_norm:
        yield f"q and k normalised{'' if facts.head_norms else ' over all heads'}"
    experts = next((layer.experts for layer in facts.layers if layer.experts), None)
    if experts:
        yield f"{experts.chosen} of {experts.count} experts"
    if facts.attention_softcap or facts.final_softcap:
        yield "soft caps"
    if facts.biases:
        yield f"biases of {' '.join(part for part in ('q', 'k', 'v', 'o', 'gate', 'up', 'down', 'norm') if part in facts.biases)}"
    if not encoder:
        yield "tied" if facts.tied else "a head of its own"
