"""names: the location of each parameter of a graph in the files of a checkpoint: name of a tensor, and part of that tensor.

Parameters have the names of `TensorNames`, one for each projection. Files may store several parameters as one tensor (`Fused`),
experts in a stack or one by one, projections as [in, out], and all names with another prefix. A parameter is a view of the file
wherever its elements are in order. Experts, or norms of heads, that are stored one by one are stacked, which copies them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tensor_graphs.devices.safetensors import Weights
from tensor_graphs.errors import listed
from tensor_graphs.frontends.errors import ConfigError
from tensor_graphs.models.transformer import Facts, TensorNames

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Location of one parameter in the files. tensor, shape: name and full shape of the stored tensor. rows: (start, end, step)
    along its outputs (None: all). groups: number of equal groups of outputs, each of which holds a part of the parameter (0: not
    grouped). stack: the tensor holds all experts, along a first axis. transposed: stored as [in, out]. each: the tensors (one per
    expert or head) stacked to the parameter; `tensor` is the first, and the other fields describe each."""

    tensor: str
    shape: tuple[int, ...]
    rows: tuple[int, int, int] | None = None
    groups: int = 0
    stack: bool = False
    transposed: bool = False
    each: tuple[str, ...] = ()

    @property
    def tensors(self) -> tuple[str, ...]:
        return self.each or (self.tensor,)

    def of(self, wholes: Sequence[Array], dtype: Any) -> Array:
        """Return the parameter's elements from its tensors, as a view unless stacked, grouped or stored in another dtype."""
        if self.each:
            return np.stack([whole.astype(dtype, copy=False) for whole in wholes])
        part = self._part(wholes)
        return part if part.dtype == dtype else part.astype(dtype)

    def _part(self, wholes: Sequence[Array]) -> Array:
        part = wholes[0]
        if self.transposed:
            part = part.swapaxes(-1, -2)
        if self.rows is None:
            return part
        first, end, step = self.rows
        if not self.groups:
            return part[:, first:end:step] if self.stack else part[first:end:step]
        grouped = part.reshape(self.groups, part.shape[0] // self.groups, *part.shape[1:])
        own = grouped[:, first // self.groups:end // self.groups]
        return own.reshape(end - first, *part.shape[1:])


def prefix_of(names: TensorNames, family: str, tensors: Iterable[str], file: str | Path) -> str:
    """Return the prefix that these tensors have before the names in `names` (without root): "model.", "" for a bare model,
    "language_model.model." next to a vision tower. Raises ConfigError, which names the file, when it cannot be determined."""
    tensors = list(tensors)
    anchor = names.embed.removeprefix(names.root) + ".weight"
    prefixes = [n.removesuffix(anchor) for n in tensors if n == anchor or n.endswith("." + anchor)]
    if len(prefixes) != 1:
        raise ConfigError(f"{len(prefixes)} tensors are named …{anchor}, and a {family} checkpoint has one", file=file,
                          fix=f"the tensors are {listed(tensors)}")
    return prefixes[0]


def places(names: TensorNames, facts: Facts, prefix: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, list[TensorPlace]]:
    """Return parameter name -> locations where files may store it, the likeliest first. shapes: parameter name -> shape."""
    parts = dict(_parts(names, facts, shapes))
    layers = names.layer.partition("{i}")[0]
    result: dict[str, list[TensorPlace]] = {}
    for parameter, shape in shapes.items():
        transposed = names.transposed and len(shape) == 2 and parameter.startswith(layers)
        own = TensorPlace(parameter, shape[::-1] if transposed else shape, transposed=transposed)
        candidates = sorted((own, *parts.get(parameter, ())), key=lambda place: not place.each)
        result[parameter] = [replace(place, tensor=name, each=tensor_names) for place in candidates
                            for name, *each_of in zip(*(_spellings(tensor, names, prefix) for tensor in place.tensors), strict=True)
                            for tensor_names in ((name, *each_of) if place.each else (),)]
    return result


def unexplained(names: TensorNames, prefix: str, files: Weights, used: set[str]) -> list[str]:
    """Return the tensors with the prefix that no parameter uses and that are not listed as unused by the family."""
    without_meaning = (*names.unused, names.head + ".")
    return [n for n in files.names() if n not in used and n.startswith(prefix) and not any(u in n for u in without_meaning)]


def _spellings(tensor: str, names: TensorNames, prefix: str) -> Iterator[str]:
    """Yield the names that a tensor may have in the files."""
    spelt = [tensor]
    for new, old in names.older:
        spelt += [s.replace(new, old) for s in spelt if new in s]
    for one in dict.fromkeys(spelt):
        if one.startswith(names.root):
            yield prefix + one.removeprefix(names.root)
        else:                                        # not under the root: the head
            yield from dict.fromkeys((prefix.removesuffix(names.root) + one, one))


def _parts(names: TensorNames, facts: Facts, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, list[TensorPlace]]]:
    """Yield (parameter, its locations), for parameters that may be stored together with others, or in pieces."""
    for i, layer in enumerate(facts.layers):
        at = names.layer.format(i=i)
        alone = {}
        experts = layer.experts.count if layer.experts else 0
        for name, count in ((names.expert_gate, experts), (names.expert_up, experts), (names.expert_down, experts),
                            (names.q_norm, facts.heads), (names.k_norm, facts.kv_heads)):
            for kind in (".weight", ".bias") if "{e}" in name else ():
                tensor_names = tuple(at + name.format(e=e) + kind for e in range(count))
                stacked = at + name.replace(".{e}", "") + kind
                if stacked in shapes:
                    alone[stacked] = TensorPlace(tensor_names[0], shapes[stacked][1:], each=tensor_names)
        for fused in names.fused:
            for kind in (".weight", ".bias"):
                own = [at + part.replace(".{e}", "") + kind for part in fused.parts]
                if own[0] not in shapes:
                    continue
                stack = "{e}" in fused.parts[0]
                tensor = at + fused.tensor + ("" if kind == ".weight" else "_bias") if stack else at + fused.tensor + kind
                for name, place in _in_a_row(tensor, own, shapes, groups=facts.heads if fused.per_head else 0,
                                             transposed=names.transposed or fused.transposed, stack=stack, in_turn=fused.in_turn):
                    yield name, [alone.pop(name), place] if name in alone else [place]
        yield from ((name, [place]) for name, place in alone.items())


def _in_a_row(tensor: str, parts: list[str], shapes: Mapping[str, tuple[int, ...]], *, groups: int = 0, transposed: bool = False,
              stack: bool = False, in_turn: bool = False) -> Iterator[tuple[str, TensorPlace]]:
    """Yield (parameter, location) of parameters stored one after another along a tensor's outputs, or (in_turn) in alternating
    rows. stack: after a first axis of experts."""
    lead = shapes[parts[0]][:1] if stack else ()
    sizes, inner = [shapes[name][len(lead)] for name in parts], shapes[parts[0]][len(lead) + 1:]
    transposed = transposed and bool(inner)
    whole = (sum(sizes), *inner)[::-1] if transposed else (sum(sizes), *inner)
    start = 0
    for i, (name, size) in enumerate(zip(parts, sizes, strict=True)):
        rows = (i, sum(sizes), len(parts)) if in_turn else (start, start + size, 1)
        yield name, TensorPlace(tensor, (*lead, *whole), rows, groups, stack, transposed)
        start += size
