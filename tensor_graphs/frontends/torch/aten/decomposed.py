"""decomposed: which ops torch's own decompositions replace before a module is converted, and which they leave."""

from __future__ import annotations

KEPT = frozenset({
    "_softmax.default", "_log_softmax.default", "gelu.default", "native_layer_norm.default", "native_group_norm.default",
    "_scaled_dot_product_flash_attention_for_cpu.default", "addmm.default", "embedding.default", "relu.default", "sigmoid.default", "tanh.default", "silu.default", "softplus.default",
    "convolution_backward.default", "where.self", "_native_batch_norm_legit_no_training.default",
})
"""ops that are not decomposed: rows here, of which one kernel may compute all"""

DECOMPOSED = (
    "upsample_bilinear2d", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d", "upsample_trilinear3d",
    "upsample_bicubic2d", "grid_sampler_2d", "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
    "native_group_norm_backward", "native_layer_norm_backward", "native_batch_norm_backward", "std", "std_mean", "var_mean",
    "linalg_vector_norm", "norm", "_softmax_backward_data", "_log_softmax_backward_data", "gelu_backward", "silu_backward",
    "elu_backward", "leaky_relu_backward", "hardtanh_backward", "threshold_backward", "nll_loss_forward", "nll_loss_backward",
    "nll_loss2d_forward", "elu", "leaky_relu", "hardtanh", "logsumexp", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d",
    "replication_pad1d", "replication_pad2d", "replication_pad3d", "select_scatter", "slice_scatter", "index_select",
    "max_pool2d_with_indices_backward", "embedding_dense_backward", "addmv", "addbmm", "fmax", "fmin", "ldexp", "adaptive_max_pool2d", "index_reduce", "put", "nll_loss2d_backward", "reflection_pad1d_backward", "reflection_pad2d_backward",
    "reflection_pad3d_backward", "_adaptive_avg_pool2d_backward", "pixel_shuffle", "pixel_unshuffle", "im2col", "unfold",
    "unfold_backward", "_unsafe_index", "_unsafe_index_put", "_unsafe_masked_index", "_unsafe_masked_index_put_accumulate", "cumprod",
    "select_backward", "slice_backward", "diagonal_scatter", "isneginf", "isposinf", "heaviside", "logaddexp", "logaddexp2",
    "nan_to_num", "sgn", "trace", "xlogy", "dist", "index_add", "index_copy", "index_fill", "masked_fill", "renorm", "glu",
    "glu_backward", "soft_margin_loss", "mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward", "affine_grid_generator",
)
"""further ops that torch's own decompositions replace"""
