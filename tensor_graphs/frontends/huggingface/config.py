"""config: converts a config.json to the facts of a model, by the row of its family (frontends/huggingface/families.py).

Keys, defaults and meanings are those of transformers 5, and of the older spellings that it still accepts.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from tensor_graphs.frontends.huggingface.families import ACTIVATION_NAMES, FULL, SLIDING, Family, Maybe
from tensor_graphs.frontends.huggingface.quantised import Layout, layout_of
from tensor_graphs.frontends.json_settings import Section, stored_dtype
from tensor_graphs.language.errors import AttributeValueError
from tensor_graphs.models.rope import Rope
from tensor_graphs.models.transformer import Facts, TensorNames

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FamilyConfig:
    """The settings and facts from one config.json. settings: by the names in the family's row. names: names of its tensors. dtype:
    of the weights as config.json states it; a tensor in the files may have another. assumed: key -> default, for each size that
    config.json does not give. layout: how the files hold codes; None for plain tensors."""

    family: Family
    settings: Mapping[str, Any]
    facts: Facts
    names: TensorNames
    max_position_embeddings: int
    dtype: str
    assumed: Mapping[str, int] = field(default_factory=dict)
    layout: Layout | None = None


_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size", "num_hidden_layers", "num_attention_heads",
          "num_key_value_heads", "head_dim", "num_local_experts", "max_position_embeddings", "type_vocab_size")
"""Settings that decide the shapes of tensors, or their number."""

_NULLABLE = ("sliding_window", "final_logit_softcapping", "attn_logit_softcapping", "head_dim", "num_key_value_heads", "n_inner",
             "layer_types", "no_rope_layers")
"""Keys where null is a value in itself, not a request for the default."""


_MOST = {"num_hidden_layers": 512, "num_local_experts": 4096, "num_attention_heads": 1 << 16, "head_dim": 1 << 16,
         "max_position_embeddings": 1 << 24}
"""Setting -> largest value accepted: far above that of any model, but small enough that a graph is built in seconds."""
_MOST_EXPERTS = 1 << 17
"""Largest number of experts in all layers together, as each may be a tensor of its own."""
_MOST_ELEMENTS = (1 << 31) - 1
"""Largest value of all other sizes."""


def read_family(c: Section, family: Family, within: str = "") -> FamilyConfig:
    """Return the configuration of one model. within: key of the object in c that holds the settings ("": c itself).

    Raises ConfigError for a setting that is wrong, missing or not supported.
    """
    c = _text_model(c, within) if within else c
    layout = layout_of(c)
    for key, harmless in family.refused.items():
        c.refuse(key, harmless, f"only {' or '.join(str(v).lower() for v in harmless)} is", fix="a model without it")
    s = SimpleNamespace(head_dim=None, num_key_value_heads=None, layer_types=None, sliding_window=None)
    for name, default in family.settings.items():
        setattr(s, name, _setting(c, family, name, default))
    _check(c, family, s)
    rotated = {kind: _rope(c, family, s, kind) if hasattr(s, "rope_theta") else None for kind in (SLIDING, FULL)}
    try:
        facts = family.described(s, rotated)
    except AttributeValueError as error:
        raise c.error(error.message) from error
    blind = next((i for i, layer in enumerate(facts.layers) if family.slides(s, i) and not layer.window), None)
    if blind is not None:
        raise c.error(f"layer {blind} has a window of {s.sliding_window}, which sees nothing on either side", fix="at least 2")
    dtype = stored_dtype(c)
    c.warn_of_the_rest()
    # for this kind of rotation alone max_position_embeddings is the length before it was stretched
    longer = max((layer.rope.scaling for layer in facts.layers if layer.rope and layer.rope.kind == "dynamic"), default=1.0)
    positions = int(s.max_position_embeddings * max(longer, 1.0)) - facts.first_position
    assumed = {keys[0]: default for name, default in family.settings.items() if name in _SIZES and type(default) is int
               for keys in [family.keys.get(name, name).split("|")] if not any(key in c.values for key in keys)}
    return FamilyConfig(family, vars(s), facts, family.named(s), positions, dtype, assumed, layout)


def _text_model(config: Section, within: str) -> Section:
    """Return the settings of the text decoder of a model with vision, and log that the vision tower is left out."""
    kind = config.text("model_type")
    if not config.has(within):
        raise config.error(f"{within} is missing", fix=f"a {kind} config nests its text decoder in {within}")
    log.info("%s: the text decoder of a model with vision; the vision tower is not read", config.path)
    text = config.section(within)
    inner = text.text("model_type", f"{kind}_text")
    if inner != f"{kind}_text":
        raise text.error(f"model_type is {inner!r}, and {kind}_text is needed")
    # settings of the outer object alone apply to the text decoder too
    outer = {k: config.values[k] for k in ("dtype", "torch_dtype", "tie_word_embeddings", "quantization_config")
             if config.values.get(k) is not None and text.values.get(k) is None}
    return Section({**text.values, **outer}, text.path, text.within)


def _setting(c: Section, family: Family, name: str, default: Any) -> Any:
    """Return the value of the first key present, checked to be of the type of its default."""
    keys, most = family.keys.get(name, name).split("|"), _MOST.get(name, _MOST_ELEMENTS)
    key = next((k for k in keys if c.has(k)), keys[0])
    c.asked |= set(keys)
    off = name == "sliding_window" and "use_sliding_window" in family.settings and c.values.get(key) == 0
    if key in _NULLABLE and key in c.values and (c.values[key] is None or off):
        return None                                   # Qwen 2 MoE writes a window of 0 for none
    if default is Maybe.LIST:
        return c.get(key, "a list", lambda v: isinstance(v, list), None)
    if isinstance(default, Maybe):
        return c.whole(key, None, most=most) if default is Maybe.WHOLE else c.number(key, None)
    if key in ("hidden_act", "hidden_activation", "activation_function", "activation"):
        return c.choice(key, ACTIVATION_NAMES, default)
    if key == "pad_token_id":
        return c.whole(key, default, least=0)
    if type(default) is int:
        return c.whole(key, default, most=most)
    kinds: Mapping[type, Callable[..., Any]] = {bool: c.boolean, float: c.number, str: c.text}
    return kinds[type(default)](key, default)


def _check(c: Section, family: Family, s: SimpleNamespace) -> None:
    """Raise ConfigError for sizes and lists that do not fit each other."""
    def said(name: str) -> str:
        """Return a setting as `key is value`, with the key that the file uses."""
        keys = family.keys.get(name, name).split("|")
        return f"{next((k for k in keys if k in c.values), keys[0])} is {getattr(s, name)}"

    if not s.head_dim and s.hidden_size % s.num_attention_heads:
        raise c.error(f"{said('hidden_size')} and {said('num_attention_heads')}: the first is no multiple of the second")
    if s.num_attention_heads % (s.num_key_value_heads or s.num_attention_heads):
        raise c.error(f"{said('num_attention_heads')} and {said('num_key_value_heads')}: the first is no multiple of the second")
    if (s.head_dim or s.hidden_size // s.num_attention_heads) > _MOST["head_dim"]:
        raise c.error(f"a head has {s.hidden_size // s.num_attention_heads} channels (hidden_size / num_attention_heads), and no "
                      f"model has more than {_MOST['head_dim']}")
    count = getattr(s, "num_local_experts", 0)
    if count and not 1 <= s.num_experts_per_tok <= count:
        raise c.error(f"{said('num_experts_per_tok')} and {said('num_local_experts')}: the first is at least 1, at most the second")
    if s.num_hidden_layers * count > _MOST_EXPERTS:
        raise c.error(f"{s.num_hidden_layers} layers of {count} experts are {s.num_hidden_layers * count}, and no model has more "
                      f"than {_MOST_EXPERTS}")
    for key in ("layer_types", "no_rope_layers"):
        listed = getattr(s, key, None)
        if listed and len(listed) != s.num_hidden_layers:
            raise c.error(f"{key} lists {len(listed)} layers, num_hidden_layers says {s.num_hidden_layers}")
    wrong = next((kind for kind in s.layer_types or () if kind not in (SLIDING, FULL)), None)
    if wrong is not None:
        raise c.error(f"layer_types holds {wrong!r}, which is not supported", fix=f"supported: {SLIDING}, {FULL}")
    sliding = sum(family.slides(s, i) for i in range(s.num_hidden_layers))
    if sliding and not s.sliding_window:
        raise c.error(f"sliding_window is null, and {sliding} layers are {SLIDING}")


# ---- how positions become angles -------------------------------------------------------------------------------------


def _rope(c: Section, family: Family, s: SimpleNamespace, layers: str) -> Rope:
    """Return the rotation of the sliding or of the full layers.

    As in transformers: rope_scaling precedes rope_parameters (which may hold one object for each kind of layers); values that both
    lack come from the settings next to them.
    """
    own, two = c.section("rope_parameters"), hasattr(s, "local_rope_theta")
    own = own if own.values else Section(dict(family.rope), own.path, own.within)
    flat = sorted(set(own.values) - {SLIDING, FULL})
    if two and flat:
        raise own.error(f"{', '.join(flat)}: unknown here", fix=f"one object each for {FULL} and {SLIDING}")
    if SLIDING in own.values or FULL in own.values:
        own = own.section(layers)
    old = c.section("rope_scaling")
    if two and old.values:                             # families with two rotations merge the two objects
        old = Section({**own.values, **old.values}, old.path, old.within)
    section = old if old.values and layers in family.stretched else own
    head_dim = s.head_dim or s.hidden_size // s.num_attention_heads
    theta = section.number("rope_theta", s.local_rope_theta if two and layers == SLIDING else s.rope_theta)
    share = section.number("partial_rotary_factor", getattr(s, "partial_rotary_factor", 1.0))
    if share != 1 and not hasattr(s, "partial_rotary_factor"):
        raise section.error(f"partial_rotary_factor = {share} is not supported: {family.name} rotates whole heads")
    channels = int(head_dim * share)
    if channels % 2 or not 0 < channels <= head_dim:
        raise section.error(f"{channels} of {head_dim} channels of a head are rotated, and positions rotate pairs")
    kind = section.choice("rope_type", _KINDS, section.text("type", "default"))
    section.has("type")
    plain = Rope(float(theta), channels=0 if channels == head_dim else channels, neighbours=family.neighbours)
    facts = _KINDS[kind](section, c, s, channels)
    section.warn_of_the_rest()
    return Rope(**{**{f: getattr(plain, f) for f in plain.__slots__}, **facts})


def _default(section: Section, c: Section, s: SimpleNamespace, channels: int) -> dict[str, Any]:
    section.has("original_max_position_embeddings")
    section.refuse("factor", (1, 1.0), "rope_type says default")
    return {}


def _linear(section: Section, c: Section, s: SimpleNamespace, channels: int) -> dict[str, Any]:
    return {"scaling": float(section.number("factor"))}


def _dynamic(section: Section, c: Section, s: SimpleNamespace, channels: int) -> dict[str, Any]:
    if channels < 4:
        raise section.error(f"rope_type dynamic needs at least 4 rotated channels, and there are {channels}")
    section.has("original_max_position_embeddings")
    return {"kind": "dynamic", "scaling": float(section.number("factor")), "original": s.max_position_embeddings}


def _original(section: Section, s: SimpleNamespace) -> int:
    """Return the number of positions before the context was stretched. Settings outside of the object precede its own."""
    section.has("original_max_position_embeddings")
    return getattr(s, "original_max_position_embeddings", None) or section.whole("original_max_position_embeddings",
                                                                             s.max_position_embeddings)


def _llama3(section: Section, c: Section, s: SimpleNamespace, channels: int) -> dict[str, Any]:
    low, high = section.number("low_freq_factor"), section.number("high_freq_factor")
    if not low < high:
        raise section.error(f"low_freq_factor {low} is not below high_freq_factor {high}")
    return {"kind": "llama3", "scaling": float(section.number("factor")), "original": _original(section, s), "low": float(low),
            "high": float(high)}


def _yarn(section: Section, c: Section, s: SimpleNamespace, channels: int) -> dict[str, Any]:
    original = _original(section, s)
    factor = section.number("factor", s.max_position_embeddings / original)

    def spread(by: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * by * math.log(factor) + 1.0

    some, every = section.optional_number("mscale"), section.optional_number("mscale_all_dim")
    usual = spread(some) / spread(every) if some and every else spread(1.0)
    return {"kind": "yarn", "scaling": float(factor), "original": original, "magnitude": section.number("attention_factor", usual),
            "low": float(section.number("beta_slow", 1.0)), "high": float(section.number("beta_fast", 32.0)),
            "truncate": section.boolean("truncate", True)}


def _longrope(section: Section, c: Section, s: SimpleNamespace, channels: int) -> dict[str, Any]:
    original = _original(section, s)
    factor = section.number("factor", s.max_position_embeddings / original)
    usual = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))

    def factors(key: str) -> tuple[float, ...]:
        kind = f"a list of {channels // 2} numbers > 0"
        values = section.get(key, kind, lambda v: isinstance(v, list) and len(v) == channels // 2 and all(
            type(x) in (int, float) and 0 < x < math.inf for x in v), ...)
        return tuple(float(x) for x in values)

    return {"kind": "longrope", "scaling": float(factor), "original": original,
            "magnitude": section.number("attention_factor", usual), "short": factors("short_factor"),
            "long": factors("long_factor")}


_KINDS: Mapping[str, Callable[[Section, Section, SimpleNamespace, int], dict[str, Any]]] = {
    "default": _default, "linear": _linear, "dynamic": _dynamic, "llama3": _llama3, "yarn": _yarn, "longrope": _longrope,
    "su": _longrope}
"""rope_type in config.json -> function that reads the other keys of its object."""
