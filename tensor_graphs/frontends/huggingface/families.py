"""families: one row per model family: the settings in its config.json (with the defaults of its published code), the facts that
follow from them, and the names of its tensors. docs/adding_a_model.md describes how to add one.

Settings have Llama's names; `keys` maps them to the family's own names. Facts without an entry have the usual values
(`Family.described`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from tensor_graphs.models import bert, gemma3
from tensor_graphs.models.rope import Rope
from tensor_graphs.models.transformer import Experts, Facts, Fused, Layer, TensorNames

log = logging.getLogger(__name__)

SLIDING, FULL = "sliding_attention", "full_attention"
ACTIVATION_NAMES = {"gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu": "gelu",
                    "silu": "silu", "swish": "silu", "relu": "relu", "swiglu": "silu"}
"""Name of an activation in config.json -> its name in this package."""


class Maybe(Enum):
    """The default of a setting that may be absent (its value is then None), by the type of its value."""

    WHOLE = "a whole number"
    NUMBER = "a number"
    LIST = "a list"


@dataclass(frozen=True)
class Family:
    """One model family. name: model_type of config.json. settings: every setting that changes the result -> its default.

    facts(s): the facts that differ from the usual ones, computed from the settings s; besides fields of `Facts` also `scale` of
    attention scores (`scales`: of each layer) and the `window` of sliding layers. keys: setting -> its key in config.json, or
    several ("a|b"). renamed(s): the fields of `names` that settings change, for instance a norm that only some models have.
    sliding(s, i): True if layer i slides; used without layer_types. rotates(s, i, slides): True if layer i rotates positions.
    sparse(s, i): True if layer i has experts, in a family that has some (`experts` in the facts). refused: key -> its only
    supported values. neighbours: see `Rope`. rope: rope_parameters where config.json has none. stretched: the kinds of layers that
    rope_scaling applies to. types: model types, if other than the name -> key in config.json of the object with the settings ("":
    config.json itself). encoder: True for a sentence encoder, False for a decoder. like: published models of the family.
    """

    name: str
    names: TensorNames
    settings: Mapping[str, Any]
    facts: Callable[[Any], Mapping[str, Any]] = lambda s: {}
    keys: Mapping[str, str] = field(default_factory=dict)
    renamed: Callable[[Any], Mapping[str, Any]] = lambda s: {}
    sliding: Callable[[Any, int], bool] = lambda s, i: False
    rotates: Callable[[Any, int, bool], bool] = lambda s, i, slides: True
    sparse: Callable[[Any, int], bool] = lambda s, i: True
    refused: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    neighbours: bool = False
    rope: Mapping[str, Any] = field(default_factory=dict)
    stretched: tuple[str, ...] = (SLIDING, FULL)
    types: Mapping[str, str] = field(default_factory=dict)
    encoder: bool = False
    like: str = ""

    def but(self, name: str, *, settings: Mapping[str, Any] | None = None, without: tuple[str, ...] = (), **changes: Any) -> Family:
        """Return a copy of this row with another name and changes; settings are added to those of this row, minus `without`."""
        shared = {k: v for k, v in self.settings.items() if k not in without}
        return replace(self, name=name, settings={**shared, **(settings or {})}, **changes)

    def slides(self, s: Any, i: int) -> bool:
        """Return True if layer i has a window."""
        kinds = getattr(s, "layer_types", None)
        return kinds[i] == SLIDING if kinds else self.sliding(s, i)

    def named(self, s: Any) -> TensorNames:
        """Return the tensor names of one model, by its settings."""
        return replace(self.names, **self.renamed(s))

    def described(self, s: Any, ropes: Mapping[str, Rope | None]) -> Facts:
        """Return the facts of one model. s: its settings. ropes: SLIDING and FULL -> the rotation of the layers of that kind."""
        head_dim = s.head_dim or s.hidden_size // s.num_attention_heads
        facts = dict(self.facts(s))
        scale = facts.pop("scale", head_dim ** -0.5)
        scales = facts.pop("scales", (scale,) * s.num_hidden_layers)
        experts, window = facts.pop("experts", None), facts.pop("window", s.sliding_window)
        layers = []
        for i, scale in enumerate(scales):
            slides = self.slides(s, i)
            layers.append(Layer(scale, window if slides else 0,
                                ropes[SLIDING if slides else FULL] if self.rotates(s, i, slides) else None,
                                experts if self.sparse(s, i) else None))
        usual = {
            "vocabulary": s.vocab_size, "hidden": s.hidden_size, "ffn": s.intermediate_size, "heads": s.num_attention_heads,
            "kv_heads": s.num_key_value_heads or s.num_attention_heads, "head_dim": head_dim, "layers": tuple(layers), "eps": s.eps,
            "activation": ACTIVATION_NAMES[s.hidden_act], "tied": s.tie_word_embeddings}
        return Facts(**{**usual, **facts})


def _biases(**parts: bool) -> frozenset[str]:
    """Return the parts (of `q_k_v=True`: q, k and v) whose condition holds."""
    return frozenset(part for joined, there in parts.items() if there for part in joined.split("_"))


_CAUSAL = {"use_bidirectional_attention": (False,), "is_decoder": (True, False), "add_cross_attention": (False,)}

LLAMA = Family(
    "llama", TensorNames(), {
        "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": Maybe.WHOLE, "head_dim": Maybe.WHOLE, "hidden_act": "silu",
        "max_position_embeddings": 2048, "eps": 1e-6, "tie_word_embeddings": False, "rope_theta": 10_000.0, "attention_bias": False,
        "mlp_bias": False},
    lambda s: {"biases": _biases(q_k_v_o=s.attention_bias, gate_up_down=s.mlp_bias)},
    {"eps": "rms_norm_eps"}, refused=_CAUSAL, like="Llama 2, 3, 3.1, 3.2, TinyLlama, SmolLM 2")

MISTRAL = LLAMA.but(
    "mistral", without=("attention_bias", "mlp_bias"),
    settings={"intermediate_size": 14_336, "num_key_value_heads": 8, "max_position_embeddings": 131_072, "sliding_window": 4096},
    facts=lambda s: {}, sliding=lambda s, i: s.sliding_window is not None, like="Mistral 7B")

QWEN2 = LLAMA.but(
    "qwen2", without=("attention_bias", "mlp_bias"),
    settings={"vocab_size": 151_936, "intermediate_size": 22_016, "num_key_value_heads": 32, "max_position_embeddings": 32_768,
              "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28, "layer_types": Maybe.LIST},
    facts=lambda s: {"biases": frozenset("qkv")},
    sliding=lambda s, i: s.use_sliding_window and s.sliding_window is not None and i >= s.max_window_layers,
    like="Qwen 1.5, 2, 2.5")

QWEN3 = QWEN2.but(
    "qwen3", settings={"head_dim": 128, "attention_bias": False},
    names=TensorNames(q_norm="self_attn.q_norm", k_norm="self_attn.k_norm"),
    facts=lambda s: {"biases": _biases(q_k_v_o=s.attention_bias)}, like="Qwen 3")

GEMMA = LLAMA.but(
    "gemma", without=("mlp_bias",),
    settings={"vocab_size": 256_000, "hidden_size": 3072, "intermediate_size": 24_576, "num_hidden_layers": 28,
              "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
              "max_position_embeddings": 8192, "tie_word_embeddings": True},
    facts=lambda s: {**gemma3.ALIKE, "biases": _biases(q_k_v_o=s.attention_bias)}, like="Gemma 2B and 7B")

GEMMA2 = GEMMA.but(
    "gemma2", names=TensorNames(attention_out="post_attention_layernorm", ffn_in="pre_feedforward_layernorm",
                                ffn_out="post_feedforward_layernorm"),
    settings={"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
              "num_key_value_heads": 4, "query_pre_attn_scalar": 256.0, "sliding_window": 4096, "layer_types": Maybe.LIST,
              "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
    keys={"eps": "rms_norm_eps", "hidden_act": "hidden_activation|hidden_act"}, sliding=lambda s, i: i % 2 == 0,
    facts=lambda s: {**gemma3.ALIKE, "biases": _biases(q_k_v_o=s.attention_bias), "scale": s.query_pre_attn_scalar ** -0.5,
                     "attention_softcap": s.attn_logit_softcapping or 0.0, "final_softcap": s.final_logit_softcapping or 0.0},
    like="Gemma 2")



def _gemma3_facts(s: Any) -> Mapping[str, Any]:
    if s.attn_logit_softcapping:
        log.warning("attention scores are capped at %g; transformers ignores this setting for Gemma 3", s.attn_logit_softcapping)
    return GEMMA2.facts(s)


GEMMA3 = GEMMA2.but(
    "gemma3", names=gemma3.GEMMA3, types={"gemma3_text": "", "gemma3": "text_config"}, facts=_gemma3_facts, stretched=(FULL,),
    settings={"vocab_size": 262_208, "max_position_embeddings": 131_072, "rope_theta": 1_000_000.0, "local_rope_theta": 10_000.0,
              "sliding_window_pattern": 6, "final_logit_softcapping": Maybe.NUMBER, "attn_logit_softcapping": Maybe.NUMBER,
              "initializer_range": 0.02},
    keys={"eps": "rms_norm_eps", "hidden_act": "hidden_activation", "local_rope_theta": "rope_local_base_freq",
          "sliding_window_pattern": "sliding_window_pattern|_sliding_window_pattern"},
    sliding=lambda s, i: bool((i + 1) % s.sliding_window_pattern),
    refused={**_CAUSAL, "hidden_act": ("gelu_pytorch_tanh",), "partial_rotary_factor": (1, 1.0)}, like="Gemma 3 (text)")

PHI3 = LLAMA.but(
    "phi3", without=("attention_bias", "mlp_bias"), facts=lambda s: {},
    names=TensorNames(fused=(Fused("self_attn.qkv_proj", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
                             Fused("mlp.gate_up_proj", ("mlp.gate_proj", "mlp.up_proj")))),
    settings={"vocab_size": 32_064, "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 4096,
              "original_max_position_embeddings": 4096, "eps": 1e-5, "sliding_window": Maybe.WHOLE, "partial_rotary_factor": 1.0},
    sliding=lambda s, i: s.sliding_window is not None, like="Phi-3, Phi-3.5, Phi-4")

OLMO2 = LLAMA.but(
    "olmo2", without=("mlp_bias",), settings={"vocab_size": 50_304, "eps": 1e-5},
    names=TensorNames(attention_in="", attention_out="post_attention_layernorm", ffn_in="", ffn_out="post_feedforward_layernorm",
                      q_norm="self_attn.q_norm", k_norm="self_attn.k_norm"),
    facts=lambda s: {"head_norms": False, "biases": _biases(q_k_v_o=s.attention_bias)}, like="OLMo 2")


def _rotates(s: Any, i: int, slides: bool) -> bool:
    """Return False for each n-th layer: SmolLM 3 does not rotate positions in it."""
    return bool(s.no_rope_layers[i] if s.no_rope_layers else (i + 1) % s.no_rope_layer_interval)


SMOLLM3 = LLAMA.but(
    "smollm3",
    settings={"vocab_size": 128_256, "hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16,
              "num_key_value_heads": 4, "max_position_embeddings": 32_768, "tie_word_embeddings": True, "rope_theta": 2e6,
              "use_sliding_window": False, "sliding_window": Maybe.WHOLE, "no_rope_layers": Maybe.LIST,
              "no_rope_layer_interval": 4, "layer_types": Maybe.LIST},
    sliding=lambda s, i: s.use_sliding_window and s.sliding_window is not None and not _rotates(s, i, False), rotates=_rotates,
    like="SmolLM 3")

GRANITE = LLAMA.but(
    "granite",
    settings={"embedding_multiplier": 1.0, "logits_scaling": 1.0, "residual_multiplier": 1.0, "attention_multiplier": 1.0},
    facts=lambda s: {**LLAMA.facts(s), "embedding_scale": s.embedding_multiplier, "logit_scale": 1 / s.logits_scaling,
                     "residual_scale": s.residual_multiplier, "scale": s.attention_multiplier}, like="Granite 3")

COHERE2 = LLAMA.but(
    "cohere2", without=("mlp_bias",), names=TensorNames(ffn_in="input_layernorm"), neighbours=True,
    settings={"vocab_size": 256_000, "hidden_size": 8192, "intermediate_size": 22_528, "num_hidden_layers": 40,
              "num_attention_heads": 64, "max_position_embeddings": 8192, "eps": 1e-5, "tie_word_embeddings": True,
              "logit_scale": 0.0625, "sliding_window": 4096, "sliding_window_pattern": 4, "layer_types": Maybe.LIST},
    keys={"eps": "layer_norm_eps"}, sliding=lambda s, i: bool((i + 1) % s.sliding_window_pattern),
    rotates=lambda s, i, slides: slides, refused={**_CAUSAL, "use_qk_norm": (False,)},
    facts=lambda s: {"norm": "layer", "parallel": True, "logit_scale": s.logit_scale, "biases": _biases(q_k_v_o=s.attention_bias)},
    like="Command R7B, Command A")


def _stacked(names: TensorNames) -> tuple[Fused, ...]:
    """Return the experts' tensors as transformers 5 holds them in memory, and writes them unless told to use the published form."""
    return (Fused("mlp.experts.gate_up_proj", (names.expert_gate, names.expert_up)),
            Fused("mlp.experts.down_proj", (names.expert_down,)))


_MIXTRAL = TensorNames(router="block_sparse_moe.gate", expert_gate="block_sparse_moe.experts.{e}.w1",
                       expert_up="block_sparse_moe.experts.{e}.w3", expert_down="block_sparse_moe.experts.{e}.w2",
                       older=(("block_sparse_moe.gate", "mlp.gate"),))
MIXTRAL = MISTRAL.but(
    "mixtral", names=replace(_MIXTRAL, fused=_stacked(_MIXTRAL)),
    settings={"eps": 1e-5, "rope_theta": 1e6, "sliding_window": Maybe.WHOLE, "num_experts_per_tok": 2, "num_local_experts": 8},
    keys={"eps": "rms_norm_eps", "num_local_experts": "num_local_experts|num_experts"},
    facts=lambda s: {"experts": Experts(s.num_local_experts, s.num_experts_per_tok, s.intermediate_size)}, like="Mixtral")

_QWEN3_MOE = replace(QWEN3.names, router="mlp.gate")
QWEN3_MOE = QWEN3.but(
    "qwen3_moe", names=replace(_QWEN3_MOE, fused=_stacked(_QWEN3_MOE)), without=("layer_types", "max_window_layers"),
    settings={"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24, "num_key_value_heads": 4,
              "head_dim": Maybe.WHOLE, "decoder_sparse_step": 1, "moe_intermediate_size": 768, "num_experts_per_tok": 8,
              "num_local_experts": 128, "norm_topk_prob": False, "mlp_only_layers": Maybe.LIST},
    keys={"eps": "rms_norm_eps", "num_local_experts": "num_local_experts|num_experts"},
    sliding=lambda s, i: s.use_sliding_window and s.sliding_window is not None,
    sparse=lambda s, i: i not in (s.mlp_only_layers or ()) and (i + 1) % s.decoder_sparse_step == 0,
    facts=lambda s: {**QWEN3.facts(s), "experts": Experts(s.num_local_experts, s.num_experts_per_tok, s.moe_intermediate_size,
                                                          s.norm_topk_prob)}, like="Qwen 3 30B-A3B")

QWEN2_MOE = QWEN3_MOE.but(
    "qwen2_moe", names=replace(QWEN3_MOE.names, q_norm="", k_norm=""), without=("attention_bias",),
    settings={"intermediate_size": 5632, "num_attention_heads": 16, "num_key_value_heads": 16, "moe_intermediate_size": 1408,
              "shared_expert_intermediate_size": 5632, "num_experts_per_tok": 4, "num_local_experts": 60, "qkv_bias": True,
              "max_window_layers": 28, "layer_types": Maybe.LIST},
    sliding=lambda s, i: s.use_sliding_window and i % 2 == 0 and i < s.max_window_layers,
    facts=lambda s: {"biases": _biases(q_k_v=s.qkv_bias), "experts": Experts(
        s.num_local_experts, s.num_experts_per_tok, s.moe_intermediate_size, s.norm_topk_prob, s.shared_expert_intermediate_size)},
    like="Qwen 1.5 MoE, Qwen 2 57B-A14B")

_GPT_OSS = TensorNames(sinks="self_attn.sinks", router="mlp.router")
GPT_OSS = LLAMA.but(
    "gpt_oss", without=("mlp_bias",), names=replace(_GPT_OSS, fused=tuple(
        replace(fused, in_turn=True, transposed=True) for fused in _stacked(_GPT_OSS))),
    settings={"vocab_size": 201_088, "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36,
              "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131_072, "eps": 1e-5,
              "rope_theta": 150_000.0, "attention_bias": True, "sliding_window": 128, "layer_types": Maybe.LIST,
              "num_experts_per_tok": 4, "num_local_experts": 128, "swiglu_alpha": 1.702, "swiglu_limit": 7.0},
    keys={"eps": "rms_norm_eps", "num_local_experts": "num_local_experts|num_experts",
          "num_experts_per_tok": "num_experts_per_tok|experts_per_token"},
    rope={"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
          "original_max_position_embeddings": 4096}, sliding=lambda s, i: bool((i + 1) % 2),
    facts=lambda s: {"biases": _biases(q_k_v_o=s.attention_bias, router_expert=True), "experts": Experts(
        s.num_local_experts, s.num_experts_per_tok, s.intermediate_size, limit=s.swiglu_limit, gain=s.swiglu_alpha)},
    like="gpt-oss, as plain tensors")

GPT2 = Family(
    "gpt2", TensorNames(
        embed="transformer.wte", positions="transformer.wpe", norm="transformer.ln_f", layer="transformer.h.{i}.",
        attention_in="ln_1", ffn_in="ln_2", q="attn.q", k="attn.k", v="attn.v", o="attn.c_proj", gate="", up="mlp.c_fc",
        down="mlp.c_proj", root="transformer.",
        fused=(Fused("attn.c_attn", ("attn.q", "attn.k", "attn.v")),), transposed=True,
        unused=(".attn.bias", ".attn.masked_bias", "lm_head.")), {
        "vocab_size": 50_257, "hidden_size": 768, "intermediate_size": Maybe.WHOLE, "num_hidden_layers": 12,
        "num_attention_heads": 12, "hidden_act": "gelu_new", "max_position_embeddings": 1024, "eps": 1e-5,
        "tie_word_embeddings": True, "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
    lambda s: {"norm": "layer", "biases": _biases(q_k_v_o_up_down_norm=True), "positions": s.max_position_embeddings,
               "ffn": s.intermediate_size or 4 * s.hidden_size,
               "scales": [((s.hidden_size // s.num_attention_heads) ** -0.5 if s.scale_attn_weights else 1.0)
                          / (i + 1 if s.scale_attn_by_inverse_layer_idx else 1) for i in range(s.num_hidden_layers)]},
    {"hidden_size": "n_embd", "intermediate_size": "n_inner", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
     "hidden_act": "activation_function", "max_position_embeddings": "n_positions", "eps": "layer_norm_epsilon"},
    refused=_CAUSAL, like="GPT-2, DistilGPT-2")

GPT_NEOX = Family(
    "gpt_neox", TensorNames(
        embed="gpt_neox.embed_in", norm="gpt_neox.final_layer_norm", head="embed_out", layer="gpt_neox.layers.{i}.",
        root="gpt_neox.", q="attention.query", k="attention.key", v="attention.value", o="attention.dense", gate="",
        up="mlp.dense_h_to_4h", down="mlp.dense_4h_to_h",
        fused=(Fused("attention.query_key_value", ("attention.query", "attention.key", "attention.value"), per_head=True),),
        unused=("attention.bias", "attention.masked_bias", "rotary_emb.inv_freq")), {
        "vocab_size": 50_432, "hidden_size": 6144, "intermediate_size": 24_576, "num_hidden_layers": 44, "num_attention_heads": 64,
        "hidden_act": "gelu", "max_position_embeddings": 2048, "eps": 1e-5, "tie_word_embeddings": False, "rope_theta": 10_000.0,
        "partial_rotary_factor": 0.25, "attention_bias": True, "use_parallel_residual": True},
    lambda s: {"norm": "layer", "parallel": s.use_parallel_residual,
               "biases": _biases(q_k_v_o=s.attention_bias, up_down_norm=True)},
    {"eps": "layer_norm_eps", "rope_theta": "rope_theta|rotary_emb_base",
     "partial_rotary_factor": "partial_rotary_factor|rotary_pct"},
    refused=_CAUSAL, like="Pythia, GPT-NeoX 20B")

STABLELM = LLAMA.but(
    "stablelm", without=("head_dim", "attention_bias", "mlp_bias"),
    settings={"vocab_size": 50_304, "hidden_size": 2560, "intermediate_size": 6912, "num_key_value_heads": 32,
              "max_position_embeddings": 4096, "eps": 1e-5, "partial_rotary_factor": 0.25, "use_qkv_bias": False,
              "use_parallel_residual": False, "qk_layernorm": False},
    keys={"eps": "layer_norm_eps"},
    facts=lambda s: {"norm": "layer", "parallel": s.use_parallel_residual, "biases": _biases(q_k_v=s.use_qkv_bias, norm=True)},
    renamed=lambda s: {**({"ffn_in": "input_layernorm"} if s.use_parallel_residual else {}),
                       **({"q_norm": "self_attn.q_layernorm.norms.{e}", "k_norm": "self_attn.k_layernorm.norms.{e}"}
                          if s.qk_layernorm else {})}, like="StableLM 3B, StableLM 2, Zephyr 3B")

STARCODER2 = LLAMA.but(
    "starcoder2", without=("head_dim", "attention_bias", "mlp_bias"), names=TensorNames(gate="", up="mlp.c_fc", down="mlp.c_proj"),
    settings={"vocab_size": 49_152, "hidden_size": 3072, "intermediate_size": 12_288, "num_hidden_layers": 30,
              "num_attention_heads": 24, "num_key_value_heads": 2, "hidden_act": "gelu_pytorch_tanh",
              "max_position_embeddings": 4096, "eps": 1e-5, "tie_word_embeddings": True, "sliding_window": Maybe.WHOLE,
              "use_bias": True},
    keys={"eps": "norm_epsilon"}, sliding=lambda s, i: s.sliding_window is not None,
    facts=lambda s: {"norm": "layer", "biases": _biases(q_k_v_o_up_down=s.use_bias, norm=True)}, like="StarCoder2 3B, 7B, 15B")

BERT = Family(
    "bert", bert.BERT, {
        "vocab_size": 30_522, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
        "hidden_act": "gelu", "max_position_embeddings": 512, "type_vocab_size": 2, "eps": 1e-12, "pad_token_id": 0,
        "tie_word_embeddings": True},
    lambda s: {**bert.ALIKE, "positions": s.max_position_embeddings, "token_types": s.type_vocab_size},
    {"eps": "layer_norm_eps"}, refused={
        "is_decoder": (False,), "add_cross_attention": (False,), "position_embedding_type": ("absolute",), "pruned_heads": ({},)},
    encoder=True, like="BERT, MiniLM, BGE, E5")

ROBERTA = BERT.but(
    "roberta", settings={"vocab_size": 50_265, "pad_token_id": 1},
    facts=lambda s: {**BERT.facts(s), "first_position": s.pad_token_id + 1}, like="RoBERTa, all-roberta")

XLM_ROBERTA = ROBERTA.but("xlm-roberta", settings={"vocab_size": 30_522}, like="XLM-R, multilingual E5, BGE-M3")

DISTILBERT = ROBERTA.but(
    "distilbert", without=("type_vocab_size",), settings={"vocab_size": 30_522, "num_hidden_layers": 6, "pad_token_id": 0},
    names=replace(bert.BERT, types="", layer="transformer.layer.{i}.", q="attention.q_lin", k="attention.k_lin",
                  v="attention.v_lin", o="attention.out_lin", up="ffn.lin1", down="ffn.lin2", attention_sum="sa_layer_norm",
                  ffn_sum="output_layer_norm"),
    keys={"hidden_size": "dim|hidden_size", "intermediate_size": "hidden_dim", "num_hidden_layers": "n_layers",
          "num_attention_heads": "n_heads", "hidden_act": "activation", "eps": "layer_norm_eps"}, refused={},
    facts=lambda s: {**bert.ALIKE, "positions": s.max_position_embeddings}, like="DistilBERT")

MPNET = ROBERTA.but(
    "mpnet", without=("type_vocab_size",), settings={"vocab_size": 30_527},
    names=replace(bert.BERT, types="", relative="encoder.relative_attention_bias", q="attention.attn.q", k="attention.attn.k",
                  v="attention.attn.v", o="attention.attn.o", attention_sum="attention.LayerNorm"),
    refused={"relative_attention_num_buckets": (32,)},
    facts=lambda s: {**bert.ALIKE, "positions": s.max_position_embeddings, "first_position": s.pad_token_id + 1,
                     "buckets": 32}, like="all-mpnet-base-v2")

MODERNBERT = Family(
    "modernbert", TensorNames(
        embed="embeddings.tok_embeddings", embed_norm="embeddings.norm", norm="final_norm", layer="layers.{i}.", root="",
        attention_in="attn_norm", first_in=False, ffn_in="mlp_norm", q="attn.q", k="attn.k", v="attn.v", o="attn.Wo",
        gate="mlp.gate",
        up="mlp.up", down="mlp.Wo", unused=bert.BERT.unused,
        fused=(Fused("attn.Wqkv", ("attn.q", "attn.k", "attn.v")), Fused("mlp.Wi", ("mlp.gate", "mlp.up")))), {
        "vocab_size": 50_368, "hidden_size": 768, "intermediate_size": 1152, "num_hidden_layers": 22, "num_attention_heads": 12,
        "hidden_act": "gelu", "max_position_embeddings": 8192, "eps": 1e-5, "tie_word_embeddings": True, "rope_theta": 160_000.0,
        "local_rope_theta": 10_000.0, "attention_bias": False, "mlp_bias": False, "norm_bias": False, "sliding_window": 128,
        "global_attn_every_n_layers": 3, "layer_types": Maybe.LIST},
    lambda s: {"norm": "layer", "window": s.sliding_window // 2,
               "biases": _biases(q_k_v_o=s.attention_bias, gate_up_down=s.mlp_bias, norm=s.norm_bias)},
    {"eps": "norm_eps", "hidden_act": "hidden_activation", "sliding_window": "local_attention", "rope_theta": "global_rope_theta"},
    sliding=lambda s, i: bool(i % s.global_attn_every_n_layers), encoder=True, like="ModernBERT, GTE-ModernBERT")

NOMIC_BERT = Family(
    "nomic_bert", TensorNames(
        embed="embeddings.word_embeddings", types="embeddings.token_type_embeddings", embed_norm="emb_ln", norm="",
        layer="encoder.layers.{i}.", root="", attention_in="", attention_sum="norm1", ffn_in="", ffn_sum="norm2", q="attn.q",
        k="attn.k", v="attn.v", o="attn.out_proj", gate="mlp.fc12", up="mlp.fc11", down="mlp.fc2", unused=bert.BERT.unused,
        fused=(Fused("attn.Wqkv", ("attn.q", "attn.k", "attn.v")),)), {
        "vocab_size": 30_528, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
        "head_dim": Maybe.WHOLE, "hidden_act": "silu", "max_position_embeddings": 2048, "type_vocab_size": 2, "eps": 1e-12,
        "tie_word_embeddings": True, "rope_theta": 1000.0},
    lambda s: {"norm": "layer", "biases": _biases(norm=True), "token_types": s.type_vocab_size},
    {"hidden_size": "hidden_size|n_embd", "intermediate_size": "intermediate_size|n_inner",
     "hidden_act": "hidden_act|activation_function",
     "num_hidden_layers": "num_hidden_layers|n_layer", "num_attention_heads": "num_attention_heads|n_head",
     "max_position_embeddings": "max_position_embeddings|n_positions", "eps": "layer_norm_eps|layer_norm_epsilon",
     "rope_theta": "rope_theta|rotary_emb_base"}, refused={"prenorm": (False,), "qkv_proj_bias": (False,),
                                                           "mlp_fc1_bias": (False,)},
    encoder=True, like="nomic-embed-text v1, v1.5")

FAMILIES: Mapping[str, Family] = {row.name: row for row in (
    LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA, GEMMA2, GEMMA3, PHI3, OLMO2, SMOLLM3, GRANITE, COHERE2, MIXTRAL, QWEN3_MOE, QWEN2_MOE,
    GPT_OSS, GPT2, GPT_NEOX, STABLELM, STARCODER2, BERT, ROBERTA, XLM_ROBERTA, DISTILBERT, MPNET, MODERNBERT, NOMIC_BERT)}
"""Name of a family -> its row."""

MODEL_TYPES: Mapping[str, tuple[Family, str]] = {
    kind: (row, within) for row in FAMILIES.values() for kind, within in (row.types or {row.name: ""}).items()}
"""model_type in config.json -> (its row, key of the object that holds the settings; "": config.json itself)."""
