"""near_misses: pairs of graphs that look equal and are not, as data: mistakes that were made, or are easy to make.

test_equality.py holds `equal` to refuting each with a counterexample in float64; those in UNDECIDED are refuted or
unknown, as they differ too little, too rarely, or only in NaN.
"""

from __future__ import annotations

import math

import numpy as np

import tensor_graphs as tg
from tensor_graphs.language import atomic
from tensor_graphs.language.dims import dim_max, dim_min
from tests.proof.equal_pairs import (
    BIAS,
    K2,
    SCALE,
    V2,
    W2,
    A,
    B,
    D,
    H,
    K,
    M,
    N,
    Q,
    R,
    S,
    V,
    W,
    X,
    Y,
    Z,
    average,
    row_max,
    total,
)
from tests.proof.equal_pairs import _direct as convolution
from tests.proof.equal_pairs import _parts as parts
from tests.proof.equal_pairs import _repeated as repeated
from tests.proof.equal_pairs import _threefry as threefry
from tests.proof.pairs import Suite

MISSES = Suite()
UNDECIDED = Suite()
U8, I32 = tg.input("u", (N,), tg.u8), tg.input("i", (N,), tg.i32)
IDS = tg.input("ids", (N,), tg.i32)
COS, SIN = tg.input("cos", (N, D // 2)), tg.input("sin", (N, D // 2))
U32 = tg.input("x0", (3,), tg.u32)

MISSES.many(
    # arithmetic
    difference_swapped=lambda: (X - Y, Y - X),
    quotient_swapped=lambda: (X / Y, Y / X),
    square_of_a_sum=lambda: ((X + Y) * (X + Y), X * X + Y * Y),
    sign_of_the_product_term=lambda: ((X - Y) ** 2, X * X + X * Y * 2.0 + Y * Y),
    one_coefficient=lambda: ((X + 1.0) ** 3, X**3 + X**2 * 3.0 + X * 2.0 + 1.0),
    a_third_in_three_digits=lambda: (X / 3.0, X * 0.333),
    sum_of_inverses=lambda: (1.0 / X + 1.0 / Y, 1.0 / (X + Y)),
    root_of_a_sum=lambda: (tg.sqrt(X * X + Y * Y), tg.abs(X) + tg.abs(Y)),
    # order
    root_of_a_square=lambda: (tg.sqrt(X * X), X),
    relu_dropped=lambda: (tg.relu(X), X),
    relu_is_not_zero=lambda: (tg.relu(X), X * 0.0),
    relu_is_not_magnitude=lambda: (tg.relu(X), tg.abs(X)),
    clip_dropped=lambda: (tg.clip(X, -1.0, 1.0), X),
    clip_one_sided=lambda: (tg.clip(X, -1.0, 1.0), tg.maximum(X, -1.0)),
    clip_in_the_wrong_order=lambda: (tg.maximum(tg.minimum(X, Y), Z), tg.minimum(tg.maximum(X, Z), Y)),
    max_of_sums=lambda: (tg.maximum(X + Y, Z), tg.maximum(X, Z) + Y),
    max_over_the_wrong_axis=lambda: (A.max(0).sum(), A.max(1).sum()),
    max_of_all_but_the_last=lambda: (X.max(-1), X[:, :5].max(-1)),
    products_of_relus=lambda: (tg.relu(X) * tg.relu(Y), tg.relu(X * Y)),
    prod_of_relus_is_not_zero=lambda: (tg.prod(tg.relu(X), axis=1), X.sum(-1) * 0.0),
    min_for_max=lambda: (tg.maximum(X, Y), tg.minimum(X, Y)),
    leaky_slope=lambda: (tg.maximum(X, X * 0.01), tg.maximum(X, X * 0.02)),
    floor_is_not_trunc=lambda: (tg.floor(X), tg.trunc(X)),
    floor_of_a_sum=lambda: (tg.floor(X + Y), tg.floor(X) + tg.floor(Y)),
    # exponentials
    exp_base_two=lambda: (tg.exp(X), tg.exp2(X)),
    exp_of_product=lambda: (tg.exp(X * Y), tg.exp(X) * tg.exp(Y)),
    log_of_sum=lambda: (tg.log(tg.exp(X) + tg.exp(Y)), X + Y),
    sigmoid_sign=lambda: (tg.sigmoid(X), 1.0 / (1.0 + tg.exp(X))),
    tanh_half_angle=lambda: (tg.tanh(X), 2.0 * tg.sigmoid(X) - 1.0),
    gelu_tanh_for_erf=lambda: (tg.gelu(X), tg.gelu(X, approximate="tanh")),
    gelu_sigmoid=lambda: (tg.gelu(X), X * tg.sigmoid(1.702 * X)),
    gelu_cubic_digit=lambda: (tg.gelu(X, approximate="tanh"),
                              0.5 * X * (1.0 + tg.tanh(math.sqrt(2.0 / math.pi) * (X + 0.044751 * X * X * X)))),
    silu_for_relu=lambda: (tg.silu(X), tg.relu(X)),
    sine_of_double=lambda: (tg.sin(X * 2.0), tg.sin(X) * 2.0),
    # softmax
    softmax_over_the_wrong_axis=lambda: (tg.softmax(X, axis=1), tg.softmax(X, axis=0)),
    softmax_without_normalising=lambda: (tg.softmax(X), tg.exp(X - row_max(X))),
    softmax_missing_maximum_in_the_sum=lambda: (tg.softmax(X), tg.exp(X - row_max(X)) / total(tg.exp(X))),
    softmax_temperature=lambda: (tg.softmax(X * 0.5), tg.softmax(X * 0.25)),
    softmax_of_absolute=lambda: (tg.softmax(X), tg.softmax(tg.abs(X))),
    logsumexp_missing_maximum=lambda: (tg.logsumexp(X), tg.log(tg.exp(X - row_max(X)).sum(-1))),
    log_softmax_base_two=lambda: (tg.log_softmax(X), tg.log2(tg.softmax(X))),
    # normalisation
    eps_smaller=lambda: (tg.rms_norm(X, eps=1e-5), tg.rms_norm(X, eps=1e-6)),
    eps_dropped=lambda: (tg.rms_norm(X, eps=1e-6), X * tg.rsqrt(average(X * X))),
    eps_outside_the_root=lambda: (tg.rms_norm(X, eps=1e-5), X / (tg.sqrt(average(X * X)) + 1e-5)),
    eps_added_to_the_sum=lambda: (tg.rms_norm(X, eps=1e-5), X * tg.rsqrt((total(X * X) + 1e-5) * (1.0 / 6.0))),
    rms_norm_offset_dropped=lambda: (tg.rms_norm(X, SCALE, offset=1.0), tg.rms_norm(X, SCALE)),
    rms_norm_for_layer_norm=lambda: (tg.rms_norm(X, eps=1e-5), tg.layer_norm(X)),
    rms_norm_by_sum=lambda: (tg.rms_norm(X), X * tg.rsqrt(total(X * X) + 1e-6)),
    rms_norm_over_the_wrong_axis=lambda: (tg.rms_norm(X), X * tg.rsqrt(tg.mean(X * X, axis=0, keepdims=True) + 1e-6)),
    rms_norm_scale_folded_on_the_wrong_side=lambda: (tg.linear(tg.rms_norm(X, SCALE[:6]), tg.parameter("w6", (6, 6))),
                                                     tg.linear(tg.rms_norm(X), tg.parameter("w6", (6, 6)) * tg.reshape(SCALE, (6, 1)))),
    layer_norm_bias_inside=lambda: (tg.layer_norm(X, SCALE, BIAS), (tg.layer_norm(X) + BIAS) * SCALE),
    layer_norm_unbiased_variance=lambda: (
        tg.layer_norm(X), (X - average(X)) * tg.rsqrt(total(tg.square(X - average(X))) * (1.0 / 5.0) + 1e-5)),
    layer_norm_without_centring=lambda: (tg.layer_norm(X), X * tg.rsqrt(tg.var(X, axis=-1, keepdims=True) + 1e-5)),
    welford_off_by_one=lambda: (tg.mean(X, axis=-1), X[:, 0] + (X[:, 1:] - X[:, :1]).sum(-1) * (1.0 / 5.0)),
    mean_of_unequal_parts=lambda: (tg.mean(X, axis=-1), (tg.mean(X[:, :2], axis=-1) + tg.mean(X[:, 2:], axis=-1)) * 0.5),
    # products
    product_not_transposed=lambda: (tg.parameter("sq", (6, 6)) @ X.T, tg.parameter("sq", (6, 6)).T @ X.T),
    products_do_not_commute=lambda: (tg.parameter("sq", (6, 6)) @ tg.parameter("sr", (6, 6)),
                                     tg.parameter("sr", (6, 6)) @ tg.parameter("sq", (6, 6))),
    bias_dropped=lambda: (tg.linear(X, W, tg.parameter("o", (5,))), tg.linear(X, W)),
    projections_swapped=lambda: (
        {"q": tg.linear(X, W), "k": tg.linear(X, W2)},
        {"q": tg.linear(X, tg.concat(W2, W))[:, :5], "k": tg.linear(X, tg.concat(W2, W))[:, 5:]}),
    gate_and_up_swapped=lambda: (tg.gated(X, Y, activation="silu"), tg.gated(Y, X, activation="silu")),
    gate_by_gelu=lambda: (tg.gated(X, Y, activation="silu"), tg.gated(X, Y, activation="gelu")),
    inner_block_dropped=lambda: (X @ W.T, X[:, :4] @ W[:, :4].T),
    residual_dropped=lambda: (X + tg.rms_norm(X), tg.rms_norm(X)),
    outer_for_inner=lambda: ((A @ B).sum(), A.sum() * B.sum()),
    # positions
    rope_turned_the_other_way=lambda: (tg.rope(Q, COS, SIN), tg.rope(Q, COS, -SIN)),
    rope_tables_swapped=lambda: (tg.rope(Q, COS, SIN), tg.rope(Q, SIN, COS)),
    rope_theta=lambda: (tg.rope_table(IDS, head_dim=D, theta=10000.0)[1], tg.rope_table(IDS, head_dim=D, theta=1000.0)[1]),
    rope_one_position_late=lambda: (tg.rope_table(IDS, head_dim=D, theta=1e4)[0], tg.rope_table(IDS + 1, head_dim=D, theta=1e4)[0]),
    # movement and indices
    flip_of_the_other_axis=lambda: (tg.flip(A, axis=0), tg.flip(A, axis=1)),
    concat_swapped=lambda: (tg.concat(X, Y, axis=1), tg.concat(Y, X, axis=1)),
    transpose_by_reshape=lambda: (tg.reshape(W.T, (30,)), tg.reshape(W, (30,))),
    heads_merged_in_the_wrong_order=lambda: (tg.reshape(Q, (N, H * D)), tg.reshape(Q.permute(0, 2, 1), (N, H * D))),
    last_element_dropped=lambda: (X.sum(-1), X[:, :5].sum(-1)),
    block_remainder_dropped=lambda: (tg.input("r", (N,)).sum(), tg.input("r", (N,))[:N // 4 * 4].sum()),
    cumsum_exclusive=lambda: (tg.cumsum(X), tg.cumsum(X) - X),
    pad_on_the_other_side=lambda: (tg.pad(X, [(0, 0), (1, 0)]), tg.pad(X, [(0, 0), (0, 1)])),
    embedding_scale_dropped=lambda: (tg.embedding(W, IDS, scale=2.5), tg.embedding(W, IDS)),
    embedding_of_negative_ids=lambda: (tg.embedding(W, IDS), tg.embedding(W, tg.maximum(IDS, 0))),
    embedding_clamped=lambda: (tg.embedding(W, IDS), tg.embedding(W, tg.minimum(IDS, 4))),
    index_from_one=lambda: (tg.embedding(W, IDS), tg.embedding(W, IDS - 1)),
    strided_from_one=lambda: (X[:, ::2], X[:, 1::2]),
    # integers
    bytes_wrap=lambda: (tg.cast(U8 + U8, tg.i32), tg.cast(U8, tg.i32) * 2),
    bytes_are_unsigned=lambda: (tg.cast(U8, tg.i32), tg.cast(tg.cast(U8, tg.i8), tg.i32)),
    division_floors=lambda: (I32 // 4, -((-I32) // 4)),
    remainder_of_a_power_of_two=lambda: (I32 % 8, I32 & 3),
    exclusive_or_is_not_or=lambda: (I32 ^ tg.input("j", (N,), tg.i32), tg.bit_or(I32, tg.input("j", (N,), tg.i32))),
    less_is_not_less_equal=lambda: (I32 < 5, tg.less_equal(I32, 5)),
    wrong_constant_compared=lambda: (tg.where(I32 < 5, 1, 0), tg.where(I32 < 6, 1, 0)),
    one_value_treated_apart=lambda: (I32, tg.where(tg.equals(I32, 7), 0, I32)),
    and_for_or=lambda: (tg.input("p", (N,), tg.bool_) & tg.input("r", (N,), tg.bool_),
                        tg.bit_or(tg.input("p", (N,), tg.bool_), tg.input("r", (N,), tg.bool_))),
    zero_point_dropped=lambda: (tg.cast(U8, tg.f32) - 128.0, tg.cast(U8, tg.f32)),
    threefry_rotation=lambda: (tg.threefry2x32(tg.input("key", (2,), tg.u32), U32, U32)[0],
                               threefry(tg.input("key", (2,), tg.u32), U32, U32)[1]),
)


def _attention(**changes: object) -> tg.Node:
    result: tg.Node = tg.attention(Q, K, V, **{"scale": R, **changes})
    return result


def _causal(**changes: object) -> tg.Node:
    result: tg.Node = tg.attention(tg.input("q", (S, H, D)), K, V, **{"scale": R, "causal": True, **changes})
    return result


MISSES.many(
    scale_of_attention=lambda: (_attention(), _attention(scale=1.0 / D)),
    scale_dropped=lambda: (_attention(), _attention(scale=1.0)),
    causal_dropped=lambda: (_causal(), _causal(causal=False)),
    window_one_wider=lambda: (_causal(window=3), _causal(window=4)),
    window_one_narrower=lambda: (_causal(window=4), _causal(window=3)),
    window_dropped=lambda: (_causal(window=5), _causal()),
    start_one_late=lambda: (_causal(window=3), _causal(window=3, start=1)),
    causal_strict=lambda: (_causal(), tg.attention(tg.input("q", (S, H, D)), K, V,
                                                   atomic.iota((S, S), 1) < atomic.iota((S, S), 0), scale=R)),
    softcap_dropped=lambda: (_attention(softcap=5.0), _attention()),
    softcap_changed=lambda: (_attention(softcap=5.0), _attention(softcap=6.0)),
    heads_interleaved=lambda: (_attention(), tg.attention(Q, tg.concat(K, K, axis=1), tg.concat(V, V, axis=1), scale=R)),
    heads_of_q_swapped=lambda: (_attention(), _attention_of(tg.flip(Q, axis=1))),
    keys_for_values=lambda: (_attention(), tg.attention(Q, K, K, scale=R)),
    mask_inverted=lambda: (tg.attention(Q, K, V, tg.input("mask", (N, S), tg.bool_), scale=R),
                           tg.attention(Q, K, V, tg.logical_not(tg.input("mask", (N, S), tg.bool_)), scale=R)),
    mask_by_zero_scores=lambda: (
        tg.softmax(tg.where(tg.input("mask", (N, S), tg.bool_), tg.input("sc", (N, S)), -math.inf)),
        tg.softmax(tg.where(tg.input("mask", (N, S), tg.bool_), tg.input("sc", (N, S)), 0.0))),
    mask_by_a_large_number=lambda: (
        tg.softmax(tg.where(tg.input("mask", (N, S), tg.bool_), tg.input("sc", (N, S)), -math.inf)),
        tg.softmax(tg.where(tg.input("mask", (N, S), tg.bool_), tg.input("sc", (N, S)), -10.0))),
)


def _attention_of(q: tg.Node) -> tg.Node:
    result: tg.Node = tg.attention(q, K, V, scale=R)
    return result


@MISSES.add()
def rescale_missing_in_the_merge() -> tuple[tg.Node, tg.Node]:
    """Two parts with their own maxima, added without e^(m − new)."""
    x1, x2 = X[:, :3], X[:, 3:]
    m1, m2 = row_max(x1), row_max(x2)
    m = tg.maximum(m1, m2)
    right = total(tg.exp(x1 - m1)) * tg.exp(m1 - m) + total(tg.exp(x2 - m2)) * tg.exp(m2 - m)
    wrong = total(tg.exp(x1 - m1)) + total(tg.exp(x2 - m2)) * tg.exp(m2 - m)
    return tg.log(right) + m, tg.log(wrong) + m


@MISSES.add()
def merge_without_the_masses() -> tuple[tg.Node, tg.Node]:
    (o1, l1), (o2, l2) = parts(Q, repeated(K), repeated(V)), parts(Q, repeated(K2), repeated(V2))
    return (o1 + o2) / (l1 + l2), (o1 / l1 + o2 / l2) * 0.5


@MISSES.add()
def convolution_flipped() -> tuple[tg.Node, tg.Node]:
    image, kernel = tg.input("image", (6, 7)), tg.parameter("kernel", (3, 3))
    return convolution(image, kernel), convolution(image, tg.flip(kernel, axis=(0, 1)))


@MISSES.add()
def convolution_one_pixel_off() -> tuple[tg.Node, tg.Node]:
    image, kernel = tg.input("image", (6, 7)), tg.parameter("kernel", (3, 3))
    return convolution(image, kernel), convolution(tg.pad(image, [(1, 0), (0, 0)])[:6], kernel)


@MISSES.add()
def winograd_with_a_wrong_sign() -> tuple[tg.Node, tg.Node]:
    tile, kernel = tg.input("tile", (4, 4)), tg.parameter("kernel", (3, 3))
    bt = tg.constant(np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, -1, 0, 1]], np.float32))
    g = tg.constant(np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], np.float32))
    at = tg.constant(np.array([[1, 1, 1, 0], [0, 1, -1, -1]], np.float32))
    return convolution(tile, kernel), at @ ((g @ kernel @ g.T) * (bt @ tile @ bt.T)) @ at.T


@MISSES.add()
def state_written_one_late() -> tuple[tg.Graph, tg.Graph]:
    cache, new = tg.state("cache", (6, 3)), tg.input("new", (2, 3))
    y = tg.input("new", (2, 3)).sum()
    return tg.graph({"y": y}, {cache: cache.write(new, at=1)}), tg.graph({"y": y}, {cache: cache.write(new, at=2)})


@MISSES.add()
def outputs_swapped() -> tuple[dict[str, tg.Node], dict[str, tg.Node]]:
    return {"u": X + Y, "v": X - Y}, {"u": X - Y, "v": X + Y}


@MISSES.add()
def window_met_only_by_long_rows() -> tuple[tg.Node, tg.Node]:
    """The same up to 40 positions."""
    x = tg.input("r", (N,))
    return x.sum(), tg.where(atomic.iota((N,)) < 40, x, 0.0).sum()


@MISSES.add()
def block_of_sixteen_drops_the_rest() -> tuple[tg.Node, tg.Node]:
    x = tg.input("r", (N,))
    return (x * x).sum(), tg.square(x[:N // 16 * 16]).sum()


@MISSES.add()
def softmax_axis_of_size_one() -> tuple[tg.Node, tg.Node]:
    """Equal at m = 1 only, where both are one."""
    return tg.softmax(A, axis=1), A * 0.0 + 1.0


@MISSES.add()
def square_matrices_hide_a_transposition() -> tuple[tg.Node, tg.Node]:
    a = tg.input("sq", (N, N))
    return a.sum(0), a.sum(1)


# ---- dims: what min, max and // of them do at sizes that have to be looked for -----------------------------------------

C1, C2 = tg.dim("c1", 1, 256), tg.dim("c2", 1, 256)


def _counts(left: tg.Dim, right: tg.Dim) -> tuple[dict[str, tg.Node], dict[str, tg.Node]]:
    """Inputs of c1 and c2 elements times a number that the dims have."""
    def made(count: tg.Dim) -> dict[str, tg.Node]:
        return {name: tg.input(name, (c,)) * tg.constant(count, tg.f32) for name, c in (("r1", C1), ("r2", C2))}

    return made(left), made(right)


MISSES.many(
    square_capped=lambda: _counts(dim_min(C1 * C1, 5000), C1 * C1),
    quotient_one_early=lambda: _counts(C1 // 100, (C1 + 1) // 100),
    last_residue_alone=lambda: _counts((C1 % 97) // 96, 0),
    square_divided_one_early=lambda: _counts((C1 * C1) // 101, (C1 * C1 + 1) // 101),
    sum_capped=lambda: _counts(dim_min(C1 + C2, 400), C1 + C2),
    sum_divided_one_early=lambda: _counts((C1 + C2) // 300, (C1 + C2 + 1) // 300),
    product_capped_one_higher=lambda: _counts(dim_min(C1 * C2, 5000), dim_min(C1 * C2, 5001)),
    product_divided_one_early=lambda: _counts((C1 * C2) // 3001, (C1 * C2 + 1) // 3001),
    last_residue_of_a_product=lambda: _counts(((C1 * C2) % 97) // 96, 0),
    difference_beyond_a_number=lambda: _counts(dim_max(C1 - C2, 150) - 150, 0),
    excess_times_a_dim_that_is_one=lambda: _counts((dim_max(C1 - C2, 150) - 150) * (C2 - 1), 0),
    excess_is_not_its_square=lambda: _counts((dim_max(C1, 100) - 100) ** 2, dim_max(C1, 100) - 100),
    both_dims_large=lambda: _counts(dim_max(C1 - 200, 0) * dim_max(C2 - 200, 0), 0),
    both_dims_multiples=lambda: _counts((C1 // 100 - (C1 - 1) // 100) * (C2 // 100 - (C2 - 1) // 100), 0),
    remainder_by_a_dim=lambda: _counts(C1 % C2 // 200, 0),
)


@MISSES.add()
def three_dims_large() -> tuple[dict[str, tg.Node], dict[str, tg.Node]]:
    """A box of too many sizes to look at all of them."""
    left, right = _counts(dim_max(C1 - 200, 0) * dim_max(C2 - 200, 0) * dim_max(N - 3000, 0), 0)
    return {**left, "s": tg.input("s", (N,))}, {**right, "s": tg.input("s", (N,))}


# ---- integers that the sizes alone determine, and that their dtype does not hold at all sizes ---------------------------


def _as_f32(one: tg.Node, other: tg.Node) -> tuple[tg.Node, tg.Node]:
    x = tg.input("r1", (C400,))
    return x * tg.cast(one, tg.f32), x * tg.cast(other, tg.f32)


def _counting(dtype: tg.DType) -> tg.Node:
    return atomic.iota((C400,), 0, dtype)


def _repeated(x: tg.Node) -> tg.Node:
    return atomic.expand(tg.reshape(x, (1,)), (C400,))


C400, C5 = tg.dim("c", 1, 400), tg.dim("c", 1, 100_000)
MISSES.many(
    bytes_count_to_255=lambda: _as_f32(_counting(tg.u8), _counting(tg.i32)),
    cast_to_bytes_wraps=lambda: _as_f32(tg.cast(_counting(tg.i32), tg.u8), _counting(tg.i32)),
    cast_of_a_float_saturates=lambda: _as_f32(tg.cast(tg.cast(_counting(tg.i32), tg.f32), tg.u8), _counting(tg.i32)),
    size_cast_to_a_byte=lambda: _as_f32(tg.cast(tg.constant(C400, tg.i32), tg.u8), tg.constant(C400, tg.i32)),
    product_of_bytes=lambda: _as_f32(_counting(tg.u8) * 3, _counting(tg.i32) * 3),
    square_of_short_numbers=lambda: _as_f32(_counting(tg.u16) * _counting(tg.u16), _counting(tg.i32) * _counting(tg.i32)),
    sum_of_bytes=lambda: _as_f32(_repeated(_counting(tg.u8).sum(0)), _repeated(_counting(tg.i32).sum(0))),
    running_sum_of_short_numbers=lambda: _as_f32(tg.cumsum(_counting(tg.i16)), tg.cumsum(_counting(tg.i32))),
    minus_signed_bytes=lambda: _as_f32(-_counting(tg.i8), -_counting(tg.i32)),
    difference_of_sizes_in_a_byte=lambda: (
        A * tg.cast(tg.cast(tg.constant(N - M, tg.i32), tg.i8), tg.f32), A * tg.cast(tg.constant(N - M, tg.i32), tg.f32)),
    squares_beyond_two_to_the_31=lambda: (
        tg.input("r1", (C5,)) * tg.cast(atomic.iota((C5,), 0, tg.i32) * atomic.iota((C5,), 0, tg.i32), tg.f32),
        tg.input("r1", (C5,)) * tg.cast(atomic.iota((C5,), 0, tg.i64) * atomic.iota((C5,), 0, tg.i64), tg.f32)),
)
UNDECIDED.many(
    a_byte_holds_no_size_above_255=lambda: _as_f32(tg.constant(C400, tg.u8), tg.constant(C400, tg.i32)),
    sum_of_given_booleans_in_a_byte=lambda: _as_f32(
        _repeated(tg.cast(tg.input("p", (C400,), tg.bool_), tg.u8).sum(0)),
        _repeated(tg.cast(tg.input("p", (C400,), tg.bool_), tg.i32).sum(0))),
)


@UNDECIDED.add(bits=True)
def bf16_counts_to_256() -> tuple[tg.Node, tg.Node]:
    one, other = tg.cast(_counting(tg.i32), tg.bf16), _counting(tg.i32)
    return _as_f32(one, other)


@MISSES.add()
def shapes_that_differ() -> tuple[tg.Node, tg.Node]:
    return tg.input("r", (N,)), tg.pad(tg.input("r", (N,)), [(0, 1)])


UNDECIDED.many(
    a_value_no_sample_meets=lambda: (tg.input("i", (N,), tg.i64), tg.where(
        tg.equals(tg.input("i", (N,), tg.i64) * 7 + 3, 987654321), 0, tg.input("i", (N,), tg.i64))),
    equal_but_for_ties=lambda: (tg.where(tg.equals(X, Y), 1.0, 0.0), X * 0.0),
    nan_where_nothing_is_seen=lambda: (
        tg.attention(Q, K, V, tg.input("mask", (N, S), tg.bool_), scale=R),
        (tg.softmax(tg.where(tg.input("mask", (N, S), tg.bool_), Q.permute(1, 0, 2) @ repeated(K).permute(1, 2, 0) * R, -math.inf))
         @ repeated(V).permute(1, 0, 2)).permute(1, 0, 2)),
    eps_too_small_to_see=lambda: (tg.rms_norm(X, eps=1e-20), tg.rms_norm(X, eps=1e-21)),
    swallowed_by_a_large_number=lambda: ((X + 1e30) - 1e30, X * 0.5),
    ties_of_argmax=lambda: (tg.argmax(X), 5 - tg.argmax(tg.flip(X, axis=1))),
    step_at_a_rare_value=lambda: (X, X + tg.where(X * X * X > 1e9, 1.0, 0.0)),
    many_relus=lambda: (tg.prod(tg.relu(tg.input("wide", (40,)))), tg.prod(tg.input("wide", (40,))) * 0.0),
    reads_another_leaf=lambda: (tg.input("i", (N,), tg.i32), tg.where(tg.equals(I32, 2**30 + 12345), 0, tg.input("j", (N,), tg.i32) * 0 + I32)),
    types_that_differ=lambda: (X, tg.cast(tg.floor(X), tg.i32)),
    number_of_outputs=lambda: ({"u": X}, {"u": X, "v": Y}),
)


@UNDECIDED.add(bits=True)
def a_cast_counts_in_bits_mode() -> tuple[tg.Node, tg.Node]:
    return X, tg.cast(tg.cast(X, tg.bf16), tg.f32)


@UNDECIDED.add(bits=True)
def rounded_before_the_sum() -> tuple[tg.Node, tg.Node]:
    return tg.cast(X + Y, tg.bf16), tg.cast(X, tg.bf16) + tg.cast(Y, tg.bf16)


# ---- literals next to each other -------------------------------------------------------------------------------------

ONE, F64 = tg.input("x", (), tg.f64), tg.f64
NEXT = 1.0 + 2.0**-52


def _f64(value: float) -> tg.Node:
    return tg.constant(value, tg.f64)


UNDECIDED.many(
    one_and_the_next_amplified=lambda: ((_f64(NEXT) - _f64(1.0)) * 2.0**52 * ONE, ONE * 0.0),
    times_one_and_times_the_next_amplified=lambda: ((ONE * NEXT - ONE) * 2.0**52, ONE * 0.0),
    floor_below_one=lambda: (tg.floor(_f64(0.9999999999999999)) * ONE, ONE),
    below_one_and_below_the_next=lambda: (tg.less(ONE, 1.0), tg.less(ONE, NEXT)),
    one_is_below_the_next=lambda: (tg.less(_f64(1.0), _f64(NEXT)), tg.constant(False)),
    chosen_as_one_is_below_the_next=lambda: (tg.where(tg.less(_f64(1.0), _f64(NEXT)), ONE, tg.input("y", (), F64)), tg.input("y", (), F64)),
    positions_below_two_and_the_next=lambda: (
        tg.where(tg.less(tg.iota((4,), 0, F64), 2.0000000000000004), tg.input("v", (4,)), 0.0),
        tg.where(tg.less(tg.iota((4,), 0, F64), 2.0), tg.input("v", (4,)), 0.0)),
    integer_of_nearly_three=lambda: (tg.cast(tg.cast(_f64(2.9999999999999996), tg.i32), F64) * ONE, ONE * 3.0),
    three_tenths_and_the_next=lambda: (ONE * 0.3, ONE * 0.30000000000000004),
    a_tenth_and_the_next=lambda: (ONE * 0.1, ONE * 0.10000000000000002),
    tenths_added_up_and_the_next=lambda: (ONE * 0.1 + ONE * 0.2, ONE * 0.30000000000000004),
    a_third_and_the_next=lambda: (ONE / 3.0, ONE * float(np.nextafter(1 / 3, 1.0))),
    pi_and_the_next=lambda: (ONE * math.pi, ONE * float(np.nextafter(math.pi, 4.0))),
    ln2_and_the_next=lambda: (tg.exp2(ONE / math.log(2.0)), tg.exp2(ONE / float(np.nextafter(math.log(2.0), 1.0)))),
    root_and_the_next=lambda: (ONE * 8.0**-0.5, ONE * float(np.nextafter(8.0**-0.5, 0.0))),
    half_by_the_float_before_a_root=lambda: (ONE * 0.7071067811865475 * 0.7071067811865475, ONE * 0.5),
    product_of_vectors_near_zero=lambda: (
        tg.where(tg.less(tg.dot(tg.constant(np.array([0.1, 0.2, -0.30000000000000004]), F64), tg.constant(np.ones(3), F64)), 0.0),
                 ONE, ONE * 2.0), ONE * 2.0),
    root_of_the_next=lambda: (tg.sqrt(_f64(0.30000000000000004)) * ONE, tg.sqrt(_f64(0.3)) * ONE),
)


# ---- narrow floats in bits mode --------------------------------------------------------------------------------------


def _counted(size: int, dtype: tg.DType) -> tg.Node:
    return tg.cast(tg.sum(tg.cast(tg.input("b", (size,), tg.bool_), dtype)), tg.f32)


def _times(x: tg.Node) -> tg.Node:
    return tg.input("x", x.shape) * tg.cast(x, tg.f32)


def _sized(dtype: tg.DType) -> tg.Node:
    return tg.constant(tg.dim("n", 1, 300), dtype)


BF, I32S = tg.input("x", (), tg.bf16), tg.input("i", (), tg.i32)
UNDECIDED.many(
    bits=True,
    bf16_has_no_257=lambda: (_times(tg.constant(257.0, tg.bf16)), _times(tg.constant(257.0))),
    bf16_has_no_tenth=lambda: (_times(tg.constant(0.1, tg.bf16)), _times(tg.constant(0.1))),
    f32_has_no_tenth=lambda: (tg.cast(tg.constant(0.1), F64) * ONE, ONE * 0.1),
    bf16_threshold=lambda: (tg.less(0.1, BF), tg.less(0.1, tg.cast(BF, tg.f32))),
    bf16_counts_booleans=lambda: (_counted(300, tg.bf16), _counted(300, tg.f32)),
    bf16_counts_choices=lambda: (
        tg.cast(tg.sum(tg.where(tg.input("b", (300,), tg.bool_), tg.constant(1.0, tg.bf16), tg.constant(0.0, tg.bf16))), tg.f32),
        _counted(300, tg.f32)),
    bf16_sizes=lambda: (_times(_sized(tg.bf16)), _times(_sized(tg.f32))),
    bf16_positions=lambda: (_times(tg.iota((300,), 0, tg.bf16)), _times(tg.iota((300,), 0, tg.f32))),
    bf16_bytes_and_two=lambda: (tg.cast(tg.cast(U8, tg.bf16) + 2.0, tg.f32), tg.cast(U8, tg.f32) + 2.0),
    f16_integers=lambda: (tg.cast(tg.cast(I32S, tg.f16), tg.f32), tg.cast(I32S, tg.f32)),
    f32_integers_a_little_too_large=lambda: (
        tg.where(tg.less(I32S, 2**24 + 2), tg.cast(tg.cast(I32S, tg.f32), F64), 0.0),
        tg.where(tg.less(I32S, 2**24 + 2), tg.cast(I32S, F64), 0.0)),
    f16_halves_of_the_least=lambda: (tg.input("h", (), tg.f16) * 2.0**-10 * 2.0**10, tg.input("h", (), tg.f16)),
    f16_added_in_place=lambda: (lambda h, u, at: (
        tg.cast(tg.scatter(h, at, u, mode="add"), tg.f32), tg.scatter(tg.cast(h, tg.f32), at, tg.cast(u, tg.f32), mode="add")))(
        tg.input("h", (4,), tg.f16), tg.input("u", (3,), tg.f16), tg.constant(np.zeros(3, np.int32))),
    f16_border=lambda: (tg.cast(tg.pad(tg.input("h", (4,), tg.f16), [(1, 1)], 0.1), tg.f32),
                        tg.pad(tg.cast(tg.input("h", (4,), tg.f16), tg.f32), [(1, 1)], 0.1)),
)


def _masked_maxima(times: int) -> tg.Node:
    """Return for each place the largest value before it, repeatedly."""
    n = tg.dim("n", 1, 64)
    mask, out = tg.less(tg.iota((n, n), 1), tg.iota((n, n), 0)), tg.exp(tg.input("x", (n,)))
    for _ in range(times):
        out = tg.reduce_max(tg.where(mask, tg.expand(tg.reshape(out, (1, n)), (n, n)), 0.0), axis=1)
    return tg.maximum(tg.reduce_max(out), 0.0)


UNDECIDED.many(
    maxima_of_maxima=lambda: (_masked_maxima(4), tg.sum(tg.input("x", (tg.dim("n", 1, 64),))) * 0.0),
    maxima_one_step_later=lambda: (_masked_maxima(4), _masked_maxima(5)),
)
