"""decomposed: which ops torch's own decompositions replace before a module is converted, and which they leave."""

from __future__ import annotations

KEPT = frozenset({
    "_log_softmax.default", "_native_batch_norm_legit_no_training.default",
    "_scaled_dot_product_flash_attention_for_cpu.default", "_softmax.default", "_unsafe_index.Tensor",
    "_unsafe_index_put.default", "addmm.default", "convolution_backward.default", "embedding.default", "gelu.default",
    "index_select.default", "native_group_norm.default", "native_layer_norm.default", "relu.default", "sigmoid.default",
    "silu.default", "tanh.default", "where.self",
})
"""ops that are not decomposed: rows here, of which one kernel may compute all"""

DECOMPOSED = (
    "_adaptive_avg_pool2d_backward", "_log_softmax_backward_data", "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional", "_softmax_backward_data", "_unsafe_masked_index",
    "_unsafe_masked_index_put_accumulate", "addbmm", "addmv", "affine_grid_generator", "cumprod",
    "dist", "elu", "elu_backward", "embedding_dense_backward", "fmax", "fmin", "gelu_backward", "glu",
    "glu_backward", "grid_sampler_2d", "hardtanh", "hardtanh_backward", "heaviside", "huber_loss_backward", "im2col", "index_add",
    "index_copy", "index_fill", "index_reduce", "isneginf", "isposinf", "ldexp", "leaky_relu",
    "leaky_relu_backward", "linalg_vector_norm", "logaddexp", "logaddexp2", "logsumexp", "masked_fill",
    "max_pool2d_with_indices_backward", "mse_loss_backward", "nan_to_num", "native_batch_norm", "native_batch_norm_backward",
    "native_group_norm_backward", "native_layer_norm_backward", "nll_loss2d_backward", "nll_loss2d_forward", "nll_loss_backward",
    "nll_loss_forward", "norm", "pixel_shuffle", "pixel_unshuffle", "put", "reflection_pad1d", "reflection_pad1d_backward",
    "reflection_pad2d", "reflection_pad2d_backward", "reflection_pad3d", "reflection_pad3d_backward", "renorm", "replication_pad1d",
    "replication_pad2d", "replication_pad3d", "select_backward", "select_scatter", "sgn", "silu_backward", "slice_backward",
    "slice_scatter", "smooth_l1_loss_backward", "soft_margin_loss", "std", "std_mean", "threshold_backward", "trace",
    "unfold_backward", "upsample_bicubic2d", "upsample_bilinear2d", "upsample_linear1d", "upsample_nearest1d", "upsample_nearest2d",
    "upsample_nearest3d", "upsample_trilinear3d", "var_mean", "xlogy",
)
"""further ops that torch's own decompositions replace"""
