"""family_cases: small models of each family, made by transformers, whose every fact shows in the result.

A case is what differs from the family's base: rotations, windows, biases, tied or not, files in one piece or several. Sizes are the
same wherever a family lets them be, so that most plans are made of kernels that have been verified already.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

VOCABULARY, POSITIONS = 97, 80
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 20}
LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 4.0}
LONGROPE = {"rope_type": "longrope", "rope_theta": 500.0, "short_factor": [1.0, 1.5, 2.0, 3.0], "long_factor": [2.0, 3.0, 5.0, 9.0]}
SLIDING, FULL = "sliding_attention", "full_attention"


def plain(theta: float = 500.0, **more: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta, **more}


@dataclass(frozen=True)
class Case:
    """One small model. settings: of transformers' config. shards: whether the weights are written as several files."""

    family: str
    config: str
    name: str
    settings: dict[str, Any] = field(hash=False)
    shards: bool = False
    seed: int = 0

    @property
    def id(self) -> str:
        return f"{self.family}: {self.name}"

    @property
    def encoder(self) -> bool:
        return any(case.family == self.family for case in ENCODERS)

    def write(self, folder: Path) -> Any:
        """The model in double precision, after it was saved to a folder in single precision."""
        config = getattr(transformers, self.config + "Config")(**self.settings)
        config._attn_implementation = config._experts_implementation = "eager"      # grouped products have no double precision
        kind = {"GPT2": "GPT2LMHeadModel", "Gemma3Text": "Gemma3ForCausalLM"}.get(
            self.config, self.config + ("Model" if self.encoder else "ForCausalLM"))
        model = getattr(transformers, kind)(config).eval()
        redraw(model, self.seed)
        stacked = {"save_original_format": False} if "stacked" in self.name else {}
        model.save_pretrained(folder, **stacked, **({"max_shard_size": "20KB"} if self.shards else {}))
        assert self.shards == (len(list(folder.glob("*.safetensors"))) > 1)
        return model.double()


def redraw(model: torch.nn.Module, number: int) -> None:
    """New weights: norms so far from 1, and biases so far from 0, that each one shows; embeddings so small that eps counts."""
    done = set()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.data_ptr() in done:
                continue
            done.add(weight.data_ptr())
            seed = int.from_bytes(hashlib.sha256(f"{number} {name}".encode()).digest()[:4], "little")
            drawn = torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed))
            is_norm = weight.ndim == 1 and name.endswith("weight")
            plus_one = is_norm and not type(model).__name__.startswith("Gemma")
            small = 0.05 if weight.ndim == 1 or "embed" in name or "wte" in name else 1.2 * weight.shape[-1] ** -0.5
            spread = 0.3 if is_norm else small
            weight.copy_(drawn * spread + (1.0 if plus_one else 0.0))


def cases(family: str, config: str, base: dict[str, Any], *variants: tuple[str, dict[str, Any]]) -> list[Case]:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": POSITIONS, "pad_token_id": 0,
             "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False, "rope_parameters": plain()}
    return [Case(family, config, name, {k: v for k, v in {**sizes, **base, **more}.items() if v is not ...}, "shards" in name,
                 SEEDS.get(f"{family}: {name}", 0)) for name, more in variants]


SEEDS = {
    "llama: untied": 1, "llama: dynamic, head_dim, mlp biases": 1, "llama: yarn": 1, "mistral: no window, shards": 1,
    "gemma: biases, wide heads": 5, "gemma2: caps": 5, "gemma2: no caps, biases": 6,
    "gemma2: layers the other way round, shards": 2, "gemma3: linear, cap, untied, biases": 1,
    "gemma3: yarn, shards": 1, "gpt_oss: one of three, tied": 1, "olmo2: untied": 1,
    "smollm3: windows": 2, "granite: llama3, shards": 1, "cohere2: tied": 2, "cohere2: only windows, biases": 5,
    "gpt2: scores divided by the layer, gelu": 1, "gpt2: unscaled scores, wide, untied, shards": 1, "gpt_neox: parallel": 11,
    "gpt_neox: one after the other, whole heads": 3, "gpt_neox: no biases, linear, shards": 11,
    "starcoder2: tied": 3, "starcoder2: window, untied, biases": 1, "starcoder2: no linear biases, gelu, yarn, shards": 3,
}
"""Cases whose tokens do not vary with seed 0 -> the first seed with which they do."""

EPS = {"rms_norm_eps": 1e-3}
DECODERS: list[Case] = [
    *cases("llama", "Llama", EPS,
           ("untied", {}),
           ("llama3, tied, biases", {"rope_parameters": LLAMA3, "tie_word_embeddings": True, "attention_bias": True}),
           ("linear, one kv head, shards", {"rope_parameters": LINEAR, "num_key_value_heads": 1}),
           ("dynamic, head_dim, mlp biases", {"rope_parameters": DYNAMIC, "head_dim": 16, "mlp_bias": True,
                                              "max_position_embeddings": 24}),
           ("yarn", {"rope_parameters": YARN})),
    *cases("qwen2", "Qwen2", EPS,
           ("tied", {"tie_word_embeddings": True}),
           ("windows above layer 1", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
           ("yarn, shards", {"rope_parameters": {**YARN, "attention_factor": 0.9, "beta_fast": 8.0}})),
    *cases("qwen3", "Qwen3", {**EPS, "head_dim": 8},
           ("untied", {}),
           ("windows by layer, tied", {"use_sliding_window": True, "sliding_window": 9, "layer_types": [SLIDING, FULL],
                                       "tie_word_embeddings": True}),
           ("biases, wide heads", {"attention_bias": True, "head_dim": 16})),
    *cases("mistral", "Mistral", {**EPS, "head_dim": 8},
           ("window", {"sliding_window": 9}),
           ("no window, shards", {"sliding_window": None}),
           ("window, wide heads, tied", {"sliding_window": 5, "head_dim": 16, "tie_word_embeddings": True})),
    *cases("gemma", "Gemma", {**EPS, "head_dim": 8, "tie_word_embeddings": True},
           ("tied", {}),
           ("one kv head, gelu", {"num_key_value_heads": 1, "hidden_act": "gelu"}),
           ("biases, wide heads", {"attention_bias": True, "head_dim": 16})),
    *cases("gemma2", "Gemma2", {**EPS, "head_dim": 8, "sliding_window": 9, "tie_word_embeddings": True,
                                "query_pre_attn_scalar": 12},
           ("caps", {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
           ("no caps, biases", {"attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": True}),
           ("layers the other way round, shards", {"layer_types": [FULL, SLIDING]})),
    *cases("gemma3", "Gemma3Text", {**EPS, "head_dim": 8, "sliding_window": 9, "tie_word_embeddings": True,
                                    "query_pre_attn_scalar": 12, "layer_types": [SLIDING, FULL],
                                    "rope_parameters": {SLIDING: plain(), FULL: plain(5000.0)}},
           ("tied", {}),
           ("linear, cap, untied, biases", {"final_logit_softcapping": 3.0, "tie_word_embeddings": False, "attention_bias": True,
                                            "rope_parameters": {SLIDING: plain(), FULL: LINEAR}}),
           ("yarn, shards", {"rope_parameters": {SLIDING: plain(), FULL: YARN}})),
    *cases("phi3", "Phi3", EPS,
           ("untied", {}),
           ("window, part of a head, shards", {"sliding_window": 9, "rope_parameters": plain(partial_rotary_factor=0.5)}),
           ("longrope, tied", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 20, "tie_word_embeddings": True})),
    *cases("olmo2", "Olmo2", EPS,
           ("untied", {}),
           ("yarn", {"rope_parameters": YARN}),
           ("as many kv heads, tied, shards", {"num_key_value_heads": 4, "tie_word_embeddings": True})),
    *cases("smollm3", "SmolLM3", {**EPS, "tie_word_embeddings": True, "no_rope_layer_interval": 2},
           ("tied", {}),
           ("windows", {"use_sliding_window": True, "sliding_window": 9, "no_rope_layers": [0, 1]}),
           ("untied, biases, shards", {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True})),
    *cases("granite", "Granite", {**EPS, "embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.25},
           ("multipliers", {"logits_scaling": 4.0}),
           ("tied, biases", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "logits_scaling": 0.5}),
           ("llama3, shards", {"rope_parameters": LLAMA3})),
    *cases("cohere2", "Cohere2", {"layer_norm_eps": 1e-3, "sliding_window": 9, "layer_types": [SLIDING, FULL],
                                  "tie_word_embeddings": True},
           ("tied", {"logit_scale": 0.3}),
           ("only windows, biases", {"layer_types": [SLIDING, SLIDING], "attention_bias": True}),
           ("linear, as many kv heads, shards", {"rope_parameters": LINEAR, "num_key_value_heads": 4})),
    *cases("mixtral", "Mixtral", {**EPS, "num_local_experts": 4},
           ("two of four", {}),
           ("one of four, window, tied", {"num_experts_per_tok": 1, "sliding_window": 9, "tie_word_embeddings": True}),
           ("three of five, stacked, shards", {"num_local_experts": 5, "num_experts_per_tok": 3})),
    *cases("qwen3_moe", "Qwen3Moe", {**EPS, "head_dim": 8, "moe_intermediate_size": 24, "num_local_experts": 4,
                                     "num_experts_per_tok": 2},
           ("as they are", {}),
           ("normalised, one dense layer, biases", {"norm_topk_prob": True, "mlp_only_layers": [0], "attention_bias": True}),
           ("every second layer, stacked, shards, tied", {"decoder_sparse_step": 2, "tie_word_embeddings": True})),
    *cases("qwen2_moe", "Qwen2Moe", {**EPS, "moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2,
                                     "shared_expert_intermediate_size": 40},
           ("a shared expert", {}),
           ("normalised, windows, shards", {"norm_topk_prob": True, "use_sliding_window": True, "sliding_window": 9}),
           ("no biases, tied, stacked", {"qkv_bias": False, "tie_word_embeddings": True})),
    *cases("gpt_oss", "GptOss", {**EPS, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 9,
                                 "swiglu_limit": 1.5},
           ("sinks", {}),
           ("yarn, no biases, full first, shards", {"rope_parameters": YARN, "attention_bias": False,
                                                    "layer_types": [FULL, SLIDING]}),
           ("one of three, tied", {"num_local_experts": 3, "num_experts_per_tok": 1, "tie_word_embeddings": True})),
    *cases("gpt2", "GPT2", {"hidden_size": ..., "num_hidden_layers": ..., "num_attention_heads": ..., "num_key_value_heads": ...,
                            "intermediate_size": ..., "max_position_embeddings": ..., "rope_parameters": ..., "n_embd": 32,
                            "n_layer": 2, "n_head": 4, "n_positions": POSITIONS, "layer_norm_epsilon": 1e-3, "n_inner": 48,
                            "tie_word_embeddings": True},
           ("tied", {}),
           ("scores divided by the layer, gelu", {"scale_attn_by_inverse_layer_idx": True, "activation_function": "gelu"}),
           ("unscaled scores, wide, untied, shards", {"scale_attn_weights": False, "n_inner": None, "tie_word_embeddings": False})),
    *cases("gpt_neox", "GPTNeoX", {"num_key_value_heads": ..., "layer_norm_eps": 1e-3,
                                   "rope_parameters": plain(partial_rotary_factor=0.5)},
           ("parallel", {}),
           ("one after the other, whole heads", {"use_parallel_residual": False,
                                                 "rope_parameters": plain(partial_rotary_factor=1.0)}),
           ("no biases, linear, shards", {"attention_bias": False, "rope_parameters": {**LINEAR, "partial_rotary_factor": 0.5}})),
    *cases("stablelm", "StableLm", {"layer_norm_eps": 1e-3, "rope_parameters": plain(partial_rotary_factor=0.5)},
           ("untied", {}),
           ("parallel, biases", {"use_parallel_residual": True, "use_qkv_bias": True}),
           ("linear, tied, shards", {"rope_parameters": {**LINEAR, "partial_rotary_factor": 0.25}, "num_key_value_heads": 4,
                                     "tie_word_embeddings": True}),
           ("norms of heads, parallel, biases, shards", {"qk_layernorm": True, "use_parallel_residual": True,
                                                         "use_qkv_bias": True}),
           ("norms of heads, as many kv heads, no biases", {"qk_layernorm": True, "num_key_value_heads": 4})),
    *cases("starcoder2", "Starcoder2", {"norm_epsilon": 1e-3, "tie_word_embeddings": True},
           ("tied", {}),
           ("window, untied, biases", {"sliding_window": 9, "tie_word_embeddings": False}),
           ("no linear biases, gelu, yarn, shards", {"use_bias": False, "hidden_act": "gelu", "rope_parameters": YARN})),
]

BERTS = {"num_key_value_heads": ..., "rope_parameters": ..., "layer_norm_eps": 1e-3, "tie_word_embeddings": ...}
ENCODERS: list[Case] = [
    *cases("bert", "Bert", BERTS, ("gelu", {}), ("relu", {"hidden_act": "relu"}), ("tanh, shards", {"hidden_act": "gelu_new"})),
    *cases("roberta", "Roberta", {**BERTS, "pad_token_id": 1, "type_vocab_size": 1},
           ("gelu", {}), ("two types, pad 0", {"type_vocab_size": 2, "pad_token_id": 0}), ("relu, shards", {"hidden_act": "relu"})),
    *cases("xlm-roberta", "XLMRoberta", {**BERTS, "pad_token_id": 1, "type_vocab_size": 1},
           ("gelu", {}), ("two types", {"type_vocab_size": 2}), ("silu, shards", {"hidden_act": "silu"})),
    *cases("distilbert", "DistilBert",
           {**BERTS, "layer_norm_eps": ..., "hidden_size": ..., "intermediate_size": ..., "num_hidden_layers": ...,
            "num_attention_heads": ..., "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4},
           ("gelu", {}), ("relu", {"activation": "relu"}), ("sinusoids, shards", {"sinusoidal_pos_embds": True})),
    *cases("mpnet", "MPNet", {**BERTS, "pad_token_id": 1},
           ("gelu", {}), ("relu, two heads", {"hidden_act": "relu", "num_attention_heads": 2}), ("shards",
                                                                                                 {"layer_norm_eps": 1e-5})),
    *cases("modernbert", "ModernBert", {"num_key_value_heads": ..., "norm_eps": 1e-3, "rope_parameters": ..., "local_attention": 8,
                                        "tie_word_embeddings": ..., "num_hidden_layers": 4},
           ("every third layer is full", {}),
           ("layers by name, biases", {"layer_types": [SLIDING, FULL, FULL, SLIDING], "norm_bias": True, "mlp_bias": True,
                                       "attention_bias": True, "local_attention": 6}),
           ("other thetas, shards", {"rope_parameters": {FULL: plain(300.0), SLIDING: plain(50.0)}})),
    *cases("nomic_bert", "NomicBert", {**BERTS, "rope_parameters": plain(300.0)},
           ("silu", {}), ("gelu", {"hidden_act": "gelu"}), ("linear, shards", {"rope_parameters": LINEAR})),
]
