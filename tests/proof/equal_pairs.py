"""equal_pairs: pairs of graphs that are the same function, as data. test_equality.py holds `equal` to proving each, but for those that are
`tested_at` sizes which a number of the program meets; and to refuting none of UNREFUTED, of which runs in float64 say too little."""

from __future__ import annotations

import math

import numpy as np

import tensor_graphs as tg
from tensor_graphs.language import atomic
from tensor_graphs.language.atomic import fill
from tensor_graphs.language.dims import dim_max, dim_min
from tests.proof.pairs import Suite

EQUAL = Suite()
UNREFUTED = Suite()

N, S, M = tg.dim("n", 1, 4096), tg.dim("s", 1, 2048), tg.dim("m", 1, 512)
D, H, G = 8, 4, 2                                        # head size, heads of q, heads of k and v
X, Y, Z = (tg.input(name, (N, 6)) for name in "xyz")
A, B = tg.input("a", (N, M)), tg.input("b", (M, 5))
Q, K, V = tg.input("q", (N, H, D)), tg.input("k", (S, G, D)), tg.input("v", (S, G, D))
W, W2, SCALE, BIAS = tg.parameter("w", (5, 6)), tg.parameter("w2", (5, 6)), tg.parameter("scale", (6,)), tg.parameter("bias", (6,))
R = 1.0 / math.sqrt(D)


def row_max(x: tg.Node) -> tg.Node:
    return x.max(-1, keepdims=True)


def total(x: tg.Node) -> tg.Node:
    return x.sum(-1, keepdims=True)


def average(x: tg.Node) -> tg.Node:
    return tg.mean(x, axis=-1, keepdims=True)


# ---- arithmetic ------------------------------------------------------------------------------------------------------

EQUAL.many(
    sum_commutes=lambda: (X + Y, Y + X),
    sum_associates=lambda: ((X + Y) + Z, X + (Y + Z)),
    product_distributes=lambda: (X * (Y + Z), X * Y + X * Z),
    difference_of_squares=lambda: ((X + Y) * (X - Y), X * X - Y * Y),
    cube_by_horner=lambda: (X**3 + X**2 * 3.0 + X * 3.0 + 1.0, (X + 1.0) ** 3),
    polynomial_by_estrin=lambda: (1.0 + X * (2.0 + X * (3.0 + X * 4.0)), (1.0 + X * 2.0) + (X * X) * (3.0 + X * 4.0)),
    quotient_of_quotients=lambda: (X / (Y / Z), X * Z / Y),
    sum_of_quotients=lambda: (X / Y + Z / Y, (X + Z) / Y),
    common_denominator=lambda: (1.0 / X + 1.0 / Y, (X + Y) / (X * Y)),
    minus_twice=lambda: (-(-X), X),
    a_third=lambda: (X / 3.0, X * (1.0 / 3.0)),
    tenths=lambda: (X * 0.1 + X * 0.2, X * 0.3),
    power_of_two_literal=lambda: (X * 2.0**-24, X / 16777216.0),
    root_of_product=lambda: (tg.sqrt(tg.exp(X) * tg.exp(Y)), tg.sqrt(tg.exp(X)) * tg.sqrt(tg.exp(Y))),
    root_squared=lambda: (tg.square(tg.sqrt(X)), X),
    rsqrt_is_root_of_inverse=lambda: (tg.rsqrt(X), tg.sqrt(1.0 / X)),
    root_of_a_number=lambda: (X / math.sqrt(2.0), X * 0.5 * math.sqrt(2.0)),
    root_of_head_size=lambda: (X * (1.0 / math.sqrt(80.0)), X / math.sqrt(80.0)),
)

# ---- order -----------------------------------------------------------------------------------------------------------

EQUAL.many(
    max_commutes=lambda: (tg.maximum(X, Y), tg.maximum(Y, X)),
    max_associates=lambda: (tg.maximum(tg.maximum(X, Y), Z), tg.maximum(X, tg.maximum(Y, Z))),
    max_by_comparison=lambda: (tg.maximum(X, Y), tg.where(X < Y, Y, X)),
    max_and_min_add_up=lambda: (tg.maximum(X, Y) + tg.minimum(X, Y), X + Y),
    relu_of_both_signs=lambda: (tg.relu(X) - tg.relu(-X), X),
    magnitude_by_relu=lambda: (tg.relu(X) + tg.relu(-X), tg.abs(X)),
    magnitude_of_minus=lambda: (tg.abs(-X), tg.abs(X)),
    row_max_of_two_halves=lambda: (X.max(-1), tg.maximum(X[:, :3].max(-1), X[:, 3:].max(-1))),
    min_by_max=lambda: (tg.min(X, -1), -((-X).max(-1))),
    where_swaps=lambda: (tg.where(X < Y, X, Z), tg.where(tg.logical_not(X < Y), Z, X)),
    where_of_functions=lambda: (tg.where(X < Y, tg.exp(X), tg.exp(Z)), tg.exp(tg.where(X < Y, X, Z))),
)

# ---- exponentials ----------------------------------------------------------------------------------------------------

EQUAL.many(
    exp_of_sum=lambda: (tg.exp(X + Y), tg.exp(X) * tg.exp(Y)),
    exp_by_exp2=lambda: (tg.exp(X), tg.exp2(X * math.log2(math.e))),
    log_of_product=lambda: (tg.log(X * Y), tg.log(X) + tg.log(Y)),
    log_of_exp=lambda: (tg.log(tg.exp(X)), X),
    exp_of_log=lambda: (tg.exp(tg.log(X)), X),
    log_and_exp_in_one_sum=lambda: (tg.log(X) + tg.exp(X), tg.exp(X) + tg.log2(X) * math.log(2.0)),
    tanh_by_exp=lambda: (tg.tanh(X), 1.0 - 2.0 / (tg.exp(X * 2.0) + 1.0)),
    sigmoid_by_tanh=lambda: (tg.sigmoid(X), 0.5 * (tg.tanh(X * 0.5) + 1.0)),
    sigmoid_of_minus=lambda: (tg.sigmoid(-X), 1.0 - tg.sigmoid(X)),
    softplus_difference=lambda: (tg.softplus(X) - tg.softplus(-X), X),
    expm1_and_log1p=lambda: (tg.log1p(tg.expm1(X)), X),
    silu_by_exp=lambda: (tg.silu(X), X / (1.0 + tg.exp(-X))),
    gelu_by_erf=lambda: (tg.gelu(X), 0.5 * X * (1.0 + tg.erf(X / math.sqrt(2.0)))),
    gelu_tanh_by_tanh=lambda: (tg.gelu(X, approximate="tanh"),
                               0.5 * X * (1.0 + tg.tanh(math.sqrt(2.0 / math.pi) * (X + 0.044715 * X * X * X)))),
    gelu_tanh_cube_factored=lambda: (tg.gelu(X, approximate="tanh"),
                                     X * tg.sigmoid(2.0 * math.sqrt(2.0 / math.pi) * X * (1.0 + 0.044715 * X * X))),
    erfc_of_minus=lambda: (tg.erfc(-X), 2.0 - tg.erfc(X)),
    two_exponentials_in_a_row=lambda: (tg.exp(tg.tanh(X + Y)), tg.exp(1.0 - 2.0 / (tg.exp(X * 2.0) * tg.exp(Y * 2.0) + 1.0))),
    four_exponentials_in_a_row=lambda: (tg.exp(tg.exp(tg.exp(tg.exp(X + Y)))), tg.exp(tg.exp(tg.exp(tg.exp(Y + X))))),
)

# ---- softmax ---------------------------------------------------------------------------------------------------------


def _safe(x: tg.Node) -> tg.Node:
    e = tg.exp(x - row_max(x))
    return e / total(e)


def _online(parts: list[tg.Node]) -> tg.Node:
    """Row sums of e^(x − m) with a running maximum, block after block, and the softmax by them."""
    m = row_max(parts[0])
    mass = total(tg.exp(parts[0] - m))
    for part in parts[1:]:
        new = tg.maximum(m, row_max(part))
        mass = mass * tg.exp(m - new) + total(tg.exp(part - new))
        m = new
    return tg.concat(*[tg.exp(part - m) / mass for part in parts], axis=1)


EQUAL.many(
    softmax_naive=lambda: (tg.softmax(X), tg.exp(X) / total(tg.exp(X))),
    softmax_safe=lambda: (tg.exp(X) / total(tg.exp(X)), _safe(X)),
    softmax_shifted_by_anything=lambda: (tg.softmax(X), tg.softmax(X - Y[:, :1])),
    softmax_of_two_blocks=lambda: (tg.softmax(X), _online([X[:, :2], X[:, 2:]])),
    softmax_of_three_blocks=lambda: (tg.softmax(X), _online([X[:, :2], X[:, 2:4], X[:, 4:]])),
    softmax_in_base_two=lambda: (tg.softmax(X), tg.exp2(X * math.log2(math.e)) / total(tg.exp2(X * math.log2(math.e)))),
    log_softmax_is_log_of_softmax=lambda: (tg.log_softmax(X), tg.log(tg.softmax(X))),
    logsumexp_by_maximum=lambda: (tg.logsumexp(X), X.max(-1) + tg.log(tg.exp(X - row_max(X)).sum(-1))),
    logsumexp_of_blocks=lambda: (tg.logsumexp(X), tg.log(tg.exp(tg.logsumexp(X[:, :2])) + tg.exp(tg.logsumexp(X[:, 2:])))),
    cross_entropy=lambda: (-(Y * tg.log_softmax(X)).sum(-1), tg.logsumexp(X) * Y.sum(-1) - (X * Y).sum(-1)),
)

# ---- normalisation ---------------------------------------------------------------------------------------------------


def _two_pass(x: tg.Node, eps: float) -> tg.Node:
    centred = x - average(x)
    return centred * tg.rsqrt(average(centred * centred) + eps)


def _one_pass(x: tg.Node, eps: float) -> tg.Node:
    return (x - average(x)) * tg.rsqrt(average(x * x) - tg.square(average(x)) + eps)


def _welford(x: tg.Node, eps: float) -> tg.Node:
    """Mean and squared deviations, element after element."""
    width = x.shape[1]
    assert isinstance(width, int)
    mean, squares = x[:, :1], x[:, :1] * 0.0
    for i in range(1, width):
        delta = x[:, i:i + 1] - mean
        mean = mean + delta * (1.0 / (i + 1))
        squares = squares + delta * (x[:, i:i + 1] - mean)
    return (x - mean) * tg.rsqrt(squares * (1.0 / width) + eps)


EQUAL.many(
    mean_as_scaled_sum=lambda: (tg.mean(X, axis=-1), X.sum(-1) * (1.0 / 6.0)),
    mean_of_all=lambda: (tg.mean(X), tg.mean(tg.mean(X, axis=1), axis=0)),
    mean_of_a_product_axis=lambda: (tg.mean(A, axis=1), A.sum(1) / tg.constant(M, tg.f32)),
    variance_by_moments=lambda: (tg.var(X, axis=-1), tg.mean(X * X, axis=-1) - tg.square(tg.mean(X, axis=-1))),
    rms_norm_written_out=lambda: (tg.rms_norm(X, SCALE, eps=1e-6), X / tg.sqrt(average(X * X) + 1e-6) * SCALE),
    rms_norm_offset=lambda: (tg.rms_norm(X, SCALE, offset=1.0), tg.rms_norm(X) * (1.0 + SCALE)),
    rms_norm_scale_folded_into_weights=lambda: (tg.linear(tg.rms_norm(X, SCALE), W), tg.linear(tg.rms_norm(X), W * SCALE)),
    rms_norm_scale_hoisted_behind=lambda: (tg.linear(X * tg.rsqrt(average(X * X) + 1e-6), W),
                                           tg.linear(X, W) * tg.rsqrt(average(X * X) + 1e-6)),
    rms_norm_of_sum_of_squares=lambda: (tg.rms_norm(X, eps=0.0), X * math.sqrt(6.0) / tg.sqrt(total(X * X))),
    layer_norm_one_pass=lambda: (tg.layer_norm(X, SCALE, BIAS), _one_pass(X, 1e-5) * SCALE + BIAS),
    layer_norm_two_pass=lambda: (tg.layer_norm(X), _two_pass(X, 1e-5)),
    layer_norm_welford=lambda: (tg.layer_norm(X), _welford(X, 1e-5)),
    layer_norm_is_rms_norm_of_centred=lambda: (tg.layer_norm(X), tg.rms_norm(X - average(X), eps=1e-5)),
)

# ---- products --------------------------------------------------------------------------------------------------------

EQUAL.many(
    transposed_product=lambda: ((A @ B).T, B.T @ A.T),
    product_by_sum=lambda: (A @ B, (tg.reshape(A, (N, M, 1)) * B).sum(1)),
    linear_is_product=lambda: (tg.linear(X, W, tg.parameter("o", (5,))), X @ W.T + tg.parameter("o", (5,))),
    product_associates=lambda: ((X @ W.T) @ tg.parameter("u", (5, 3)), X @ (W.T @ tg.parameter("u", (5, 3)))),
    product_splits_the_inner_axis=lambda: (X @ W.T, X[:, :2] @ W[:, :2].T + X[:, 2:] @ W[:, 2:].T),
    two_projections_concatenated=lambda: (
        {"q": tg.linear(X, W), "k": tg.linear(X, W2)},
        {"q": tg.linear(X, tg.concat(W, W2))[:, :5], "k": tg.linear(X, tg.concat(W, W2))[:, 5:]}),
    concatenated_inputs=lambda: (tg.linear(tg.concat(X, Y, axis=1), tg.concat(W, W2, axis=1)), tg.linear(X, W) + tg.linear(Y, W2)),
    low_rank_update=lambda: (
        tg.linear(X, W + tg.parameter("up", (5, 2)) @ tg.parameter("down", (2, 6))),
        tg.linear(X, W) + tg.linear(tg.linear(X, tg.parameter("down", (2, 6))), tg.parameter("up", (5, 2)))),
    swiglu_by_gated=lambda: (tg.gated(tg.linear(X, W), tg.linear(X, W2), activation="silu"),
                             tg.linear(X, W) * tg.linear(X, W2) / (1.0 + tg.exp(-tg.linear(X, W)))),
    swiglu_fused_projection=lambda: (
        tg.silu(tg.linear(X, W)) * tg.linear(X, W2),
        tg.gated(tg.linear(X, tg.concat(W, W2))[:, :5], tg.linear(X, tg.concat(W, W2))[:, 5:], activation="silu")),
    geglu_by_gelu=lambda: (tg.gated(X, Y, activation="gelu"), tg.gelu(X) * Y),
    trace_is_cyclic=lambda: ((A @ B @ tg.input("c", (5, N)) * tg.one_hot(tg.iota((N,)), size=N)).sum(),
                             (tg.input("c", (5, N)) @ A @ B * tg.one_hot(tg.iota((5,)), size=5)).sum()),
)


# ---- attention -------------------------------------------------------------------------------------------------------


def _repeated(x: tg.Node) -> tg.Node:
    """[s, G, D] -> [s, H, D], each head repeated."""
    s = x.shape[0]
    return tg.reshape(tg.expand(tg.reshape(x, (s, G, 1, D)), (s, G, H // G, D)), (s, H, D))


def _by_hand(q: tg.Node, k: tg.Node, v: tg.Node) -> tg.Node:
    """All heads equal in number: [n, h, d], [s, h, d] twice."""
    scores = q.permute(1, 0, 2) @ k.permute(1, 2, 0) * R
    return (tg.softmax(scores) @ v.permute(1, 0, 2)).permute(1, 0, 2)


def _grouped(q: tg.Node, k: tg.Node, v: tg.Node) -> tg.Node:
    """Heads of q in groups, so that k and v are not repeated."""
    n = q.shape[0]
    by_group = tg.reshape(q, (n, G, H // G, D)).permute(1, 2, 0, 3)
    scores = by_group @ tg.reshape(k.permute(1, 2, 0), (G, 1, D, k.shape[0])) * R
    out = tg.softmax(scores) @ tg.reshape(v.permute(1, 0, 2), (G, 1, v.shape[0], D))
    return tg.reshape(out.permute(2, 0, 1, 3), (n, H, D))


def _parts(q: tg.Node, k: tg.Node, v: tg.Node) -> tuple[tg.Node, tg.Node]:
    """(unnormalised output, row mass) of a part of the keys, without a maximum: [h, n, d], [h, n, 1]."""
    e = tg.exp(q.permute(1, 0, 2) @ k.permute(1, 2, 0) * R)
    return e @ v.permute(1, 0, 2), total(e)


K2, V2 = tg.input("k2", (M, G, D)), tg.input("v2", (M, G, D))


@EQUAL.add()
def grouped_heads_by_repeat() -> tuple[tg.Node, tg.Node]:
    return tg.attention(Q, K, V, scale=R), _by_hand(Q, _repeated(K), _repeated(V))


@EQUAL.add()
def grouped_heads_by_grouping() -> tuple[tg.Node, tg.Node]:
    return _by_hand(Q, _repeated(K), _repeated(V)), _grouped(Q, K, V)


@EQUAL.add()
def keys_split_in_two() -> tuple[tg.Node, tg.Node]:
    """Two parts of the keys, merged by their masses."""
    (o1, l1), (o2, l2) = _parts(Q, _repeated(K), _repeated(V)), _parts(Q, _repeated(K2), _repeated(V2))
    merged = ((o1 + o2) / (l1 + l2)).permute(1, 0, 2)
    return tg.attention(Q, tg.concat(K, K2), tg.concat(V, V2), scale=R), merged


@EQUAL.add()
def keys_split_in_two_with_log_sum_exp() -> tuple[tg.Node, tg.Node]:
    """Two normalised parts with their log-sum-exp, merged by e^(l − log-sum-exp of both)."""
    q, k, v = tg.input("q", (N, D)), tg.input("k", (S, D)), tg.input("v", (S, D))
    k2, v2 = tg.input("k2", (M, D)), tg.input("v2", (M, D))
    s1, s2 = q @ k.T * R, q @ k2.T * R
    o1, o2 = tg.softmax(s1) @ v, tg.softmax(s2) @ v2
    l1, l2 = tg.logsumexp(s1, keepdims=True), tg.logsumexp(s2, keepdims=True)
    both = tg.log(tg.exp(l1) + tg.exp(l2))
    whole = tg.softmax(q @ tg.concat(k, k2).T * R) @ tg.concat(v, v2)
    return whole, o1 * tg.exp(l1 - both) + o2 * tg.exp(l2 - both)


@EQUAL.add()
def scale_moved_into_the_queries() -> tuple[tg.Node, tg.Node]:
    return tg.attention(Q, K, V, scale=R), tg.attention(Q * R, K, V, scale=1.0)


@EQUAL.add()
def causal_mask_by_hand() -> tuple[tg.Node, tg.Node]:
    mask = tg.less_equal(atomic.iota((S, S), 1), atomic.iota((S, S), 0))
    q = tg.input("q", (S, H, D))
    return tg.attention(q, K, V, scale=R, causal=True), tg.attention(q, K, V, mask, scale=R)


@EQUAL.add(tested_at=("s",))
def window_by_hand() -> tuple[tg.Node, tg.Node]:
    i, j = atomic.iota((S, S), 0), atomic.iota((S, S), 1)
    q = tg.input("q", (S, H, D))
    mask = tg.less_equal(j, i) & (j > i - 3)
    return tg.attention(q, K, V, scale=R, causal=True, window=3), tg.attention(q, K, V, mask, scale=R)


@EQUAL.add()
def masked_by_minus_infinity() -> tuple[tg.Node, tg.Node]:
    q, k, v, keep = tg.input("q", (N, 2)), tg.input("k", (S, 2)), tg.input("v", (S, 2)), tg.input("keep", (S,), tg.bool_)
    scores = tg.where(tg.reshape(keep, (1, S)), q @ k.T, -math.inf)
    e = tg.exp(q @ k.T) * tg.cast(keep, tg.f32)
    return tg.softmax(scores) @ v, (e @ v) / total(e)


@EQUAL.add()
def softcap_by_tanh() -> tuple[tg.Node, tg.Node]:
    q, k, v = tg.input("q", (N, 1, D)), tg.input("k", (S, 1, D)), tg.input("v", (S, 1, D))
    scores = tg.tanh(q[:, 0] @ k[:, 0].T * R / 30.0) * 30.0
    out = tg.softmax(scores) @ v[:, 0]
    return tg.attention(q, k, v, scale=R, softcap=30.0), tg.reshape(out, (N, 1, D))


@EQUAL.add()
def linear_attention_reorders() -> tuple[tg.Node, tg.Node]:
    q, k, v = tg.input("q", (N, D)), tg.input("k", (S, D)), tg.input("v", (S, D))
    return (q @ k.T) @ v, q @ (k.T @ v)


# ---- positions -------------------------------------------------------------------------------------------------------


@EQUAL.add()
def rope_as_complex_product() -> tuple[tg.Node, tg.Node]:
    cos, sin = tg.input("cos", (N, D // 2)), tg.input("sin", (N, D // 2))
    re, im = Q[:, :, :D // 2], Q[:, :, D // 2:]
    c, s = tg.reshape(cos, (N, 1, D // 2)), tg.reshape(sin, (N, 1, D // 2))
    return tg.rope(Q, cos, sin), tg.concat(re * c - im * s, re * s + im * c, axis=2)


@EQUAL.add()
def rope_by_rotating_halves() -> tuple[tg.Node, tg.Node]:
    cos, sin = tg.input("cos", (N, D // 2)), tg.input("sin", (N, D // 2))
    c, s = (tg.reshape(tg.concat(t, t, axis=1), (N, 1, D)) for t in (cos, sin))
    turned = tg.concat(-Q[:, :, D // 2:], Q[:, :, :D // 2], axis=2)
    return tg.rope(Q, cos, sin), Q * c + turned * s


@EQUAL.add()
def rope_tables_of_one_theta() -> tuple[tg.Node, tg.Node]:
    at = tg.input("at", (N,), tg.i32)
    cos, sin = tg.rope_table(at, head_dim=D, theta=10000.0)
    cos2, sin2 = tg.rope_table(at + 0, head_dim=D, theta=10000.0)
    return tg.rope(Q, cos, sin), tg.concat(Q[:, :, :4] * tg.reshape(cos2, (N, 1, 4)) - Q[:, :, 4:] * tg.reshape(sin2, (N, 1, 4)),
                                           Q[:, :, 4:] * tg.reshape(cos2, (N, 1, 4)) + Q[:, :, :4] * tg.reshape(sin2, (N, 1, 4)),
                                           axis=2)


# ---- convolution -----------------------------------------------------------------------------------------------------


def _direct(image: tg.Node, kernel: tg.Node) -> tg.Node:
    """[h, w] by [3, 3], valid: a sum of nine shifted images."""
    h, w = image.shape
    out: tg.Node | None = None
    for i in range(3):
        for j in range(3):
            term = image[i:h - 2 + i, j:w - 2 + j] * kernel[i, j]
            out = term if out is None else out + term
    assert out is not None
    return out


@EQUAL.add()
def convolution_as_im2col() -> tuple[tg.Node, tg.Node]:
    image, kernel = tg.input("image", (6, 7)), tg.parameter("kernel", (3, 3))
    rows = [tg.reshape(image[i:4 + i, j:5 + j], (20, 1)) for i in range(3) for j in range(3)]
    return _direct(image, kernel), tg.reshape(tg.concat(*rows, axis=1) @ tg.reshape(kernel, (9, 1)), (4, 5))


@EQUAL.add()
def convolution_by_gather() -> tuple[tg.Node, tg.Node]:
    image, kernel = tg.input("image", (6, 7)), tg.parameter("kernel", (3, 3))
    place = np.arange(42).reshape(6, 7)
    index = np.stack([place[i:4 + i, j:5 + j].reshape(-1) for i in range(3) for j in range(3)], 1)
    patches = tg.gather(tg.reshape(image, (42,)), tg.constant(index))
    return _direct(image, kernel), tg.reshape(patches @ tg.reshape(kernel, (9,)), (4, 5))


@EQUAL.add()
def convolution_by_winograd() -> tuple[tg.Node, tg.Node]:
    """F(2×2, 3×3): one tile of 4 × 4. Source: Lavin and Gray 2016."""
    tile, kernel = tg.input("tile", (4, 4)), tg.parameter("kernel", (3, 3))
    bt = tg.constant(np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]], np.float32))
    g = tg.constant(np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], np.float32))
    at = tg.constant(np.array([[1, 1, 1, 0], [0, 1, -1, -1]], np.float32))
    return _direct(tile, kernel), at @ ((g @ kernel @ g.T) * (bt @ tile @ bt.T)) @ at.T


@EQUAL.add(tested_at=("n",))
def convolution_in_one_dimension_by_padding() -> tuple[tg.Node, tg.Node]:
    x, kernel = tg.input("x", (N,)), tg.parameter("kernel", (3,))
    wide = tg.pad(x, [(1, 1)])
    shifted = wide[0:N] * kernel[0] + wide[1:N + 1] * kernel[1] + wide[2:N + 2] * kernel[2]
    index = tg.reshape(atomic.iota((N,)), (N, 1)) + tg.reshape(atomic.iota((3,)), (1, 3)) - 1
    return shifted, tg.gather(x, index) @ kernel


# ---- movement, indices, states ---------------------------------------------------------------------------------------

EQUAL.many(
    flip_twice=lambda: (tg.flip(tg.flip(X, axis=1), axis=1), X),
    permute_there_and_back=lambda: (Q.permute(2, 0, 1).permute(1, 2, 0), Q),
    reshape_shuffle=lambda: (tg.reshape(tg.reshape(X, (N * 6,)), (N, 3, 2)).permute(0, 2, 1), tg.reshape(X, (N, 3, 2)).permute(0, 2, 1)),
    concat_of_slices=lambda: (tg.concat(X[:, :2], X[:, 2:], axis=1), X),
    concat_by_padding=lambda: (tg.concat(X, Y, axis=1), tg.pad(X, [(0, 0), (0, 6)]) + tg.pad(Y, [(0, 0), (6, 0)])),
    embedding_by_one_hot=lambda: (tg.embedding(W, tg.input("ids", (N,), tg.i32)),
                                  tg.one_hot(tg.input("ids", (N,), tg.i32), size=5) @ W),
    scaled_embedding=lambda: (tg.embedding(W, tg.input("ids", (N,), tg.i32), scale=2.5), tg.embedding(W * 2.5, tg.input("ids", (N,), tg.i32))),
    cumsum_by_triangle=lambda: (tg.cumsum(X), X @ tg.cast(tg.less_equal(atomic.iota((6, 6), 0), atomic.iota((6, 6), 1)), tg.f32)),
    cumsum_backwards=lambda: (tg.cumsum(X) - X + tg.flip(tg.cumsum(tg.flip(X, axis=1)), axis=1), tg.expand(total(X), (N, 6))),
    product_by_halves=lambda: (tg.prod(X, axis=1), tg.prod(X[:, :2], axis=1) * tg.prod(X[:, 2:], axis=1)),
    gather_by_slice=lambda: (tg.gather(X, tg.constant([4, 2, 0]), axis=1), X[:, 4::-2]),
    scatter_is_transposed_gather=lambda: (
        (tg.scatter(fill(0, (7,), tg.f32), tg.constant([1, 5, 1]), tg.input("u", (3,)), mode="add") * tg.input("g", (7,))).sum(),
        (tg.gather(tg.input("g", (7,)), tg.constant([1, 5, 1])) * tg.input("u", (3,))).sum()),
    write_rows_by_concat=lambda: (tg.write_rows(tg.parameter("cache", (8, 3)), tg.input("rows", (2, 3)), start=3),
                                  tg.concat(tg.parameter("cache", (8, 3))[:3], tg.input("rows", (2, 3)), tg.parameter("cache", (8, 3))[5:])),
    unsigned_doubling=lambda: (tg.input("u", (N,), tg.u8) + tg.input("u", (N,), tg.u8), tg.input("u", (N,), tg.u8) * 2),
    xor_twice=lambda: (tg.input("u", (N,), tg.u32) ^ tg.input("t", (N,), tg.u32) ^ tg.input("t", (N,), tg.u32), tg.input("u", (N,), tg.u32)),
    de_morgan=lambda: (tg.logical_not(tg.input("p", (N,), tg.bool_) & tg.input("r", (N,), tg.bool_)),
                       tg.bit_or(tg.logical_not(tg.input("p", (N,), tg.bool_)), tg.logical_not(tg.input("r", (N,), tg.bool_)))),
    division_with_remainder=lambda: (tg.input("u", (N,), tg.i32) // 7 * 7 + tg.input("u", (N,), tg.i32) % 7, tg.input("u", (N,), tg.i32)),
    casts_are_no_math=lambda: (tg.cast(tg.cast(X, tg.bf16), tg.f32) @ W.T, X @ W.T),
    dequantised_product=lambda: (
        tg.linear(X, tg.cast(tg.parameter("codes", (5, 6), tg.i8), tg.f32) * tg.parameter("step", (5, 1))),
        tg.linear(X, tg.cast(tg.parameter("codes", (5, 6), tg.i8), tg.f32)) * tg.reshape(tg.parameter("step", (5, 1)), (5,))),
)


@EQUAL.add()
def state_written_in_two_ways() -> tuple[tg.Graph, tg.Graph]:
    cache, new = tg.state("cache", (6, 3)), tg.input("new", (2, 3))
    at = tg.dim("p", 0, 4)
    one = tg.graph({"y": cache.write(new, at=at).sum(0)}, {cache: cache.write(new, at=at)})
    places = atomic.iota((2,)) + tg.constant(at)
    other = tg.scatter(cache.read(), places, new, mode="set")
    return one, tg.graph({"y": other.sum(0)}, {cache: other})


def _threefry(key: tg.Node, x0: tg.Node, x1: tg.Node) -> tuple[tg.Node, tg.Node]:
    """The rounds one by one, with rotations by shifts put together by or."""
    k = (key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDA)
    x0, x1 = x0 + k[0], x1 + k[1]
    for r in range(20):
        bits = ((13, 15, 26, 6), (17, 29, 16, 24))[r // 4 % 2][r % 4]
        x0 = x0 + x1
        x1 = tg.bit_or(x1 * (1 << bits), x1 // (1 << (32 - bits))) ^ x0
        if r % 4 == 3:
            i = r // 4 + 1
            x0, x1 = x0 + k[i % 3], x1 + k[(i + 1) % 3] + i
    return x0, x1


@EQUAL.add()
def threefry_unrolled() -> tuple[dict[str, tg.Node], dict[str, tg.Node]]:
    key, x0, x1 = tg.input("key", (2,), tg.u32), tg.input("x0", (3,), tg.u32), tg.input("x1", (3,), tg.u32)
    (a, b), (c, d) = tg.threefry2x32(key, x0, x1), _threefry(key, x0, x1)
    return {"a": a, "b": b}, {"a": c, "b": d}


@EQUAL.add()
def uniform_from_bits() -> tuple[tg.Node, tg.Node]:
    key = tg.input("key", (2,), tg.u32)
    return tg.uniform(key, shape=(N,)), tg.cast(tg.random_bits(key, shape=(N,)) // 256, tg.f32) / 16777216.0


# ---- dims ------------------------------------------------------------------------------------------------------------


def _counted(left: tg.Dim, right: tg.Dim) -> tuple[tg.Node, tg.Node]:
    x = tg.input("pairs", (tg.dim("c1", 1, 256), tg.dim("c2", 1, 256)))
    return x * tg.constant(left, tg.f32), x * tg.constant(right, tg.f32)


@EQUAL.add()
def no_square_is_one_less_than_a_multiple_of_four() -> tuple[tg.Node, tg.Node]:
    c = tg.dim("c1", 1, 256)
    return _counted(c * c // 3700 + c * c // 100, (c * c + 1) // 3700 + (c * c + 1) // 100)


@EQUAL.add()
def smaller_and_larger_add_up() -> tuple[tg.Node, tg.Node]:
    product = tg.dim("c1", 1, 256) * tg.dim("c2", 1, 256)
    return _counted(dim_min(product, 5000) + dim_max(product, 5000), product + 5000)


@EQUAL.add()
def smaller_times_larger() -> tuple[tg.Node, tg.Node]:
    c1, c2 = tg.dim("c1", 1, 256), tg.dim("c2", 1, 256)
    return _counted(dim_min(c1, c2) * dim_max(c1, c2), c1 * c2)


@EQUAL.add()
def bytes_wrap_in_both() -> tuple[tg.Node, tg.Node]:
    """Compared beyond 256 as well."""
    x, count = tg.input("r", (N,)), tg.iota((N,), 0, tg.u8)
    return x * tg.cast(count + count, tg.f32), x * tg.cast(count * 2, tg.f32)


@EQUAL.add()
def flipped_by_unsigned_indices() -> tuple[tg.Node, tg.Node]:
    """−i wraps at every size, and n − 1 − i nowhere."""
    x = tg.input("r", (N,))
    return tg.gather(x, tg.constant(N - 1, tg.u32) - tg.iota((N,), 0, tg.u32), 0), tg.flip(x, axis=0)


# ---- casts count -----------------------------------------------------------------------------------------------------


@EQUAL.add(bits=True)
def rounded_once_in_both() -> tuple[tg.Node, tg.Node]:
    h = tg.cast(X, tg.bf16)
    return tg.linear(tg.cast(h, tg.f32), W), tg.cast(h, tg.f32) @ W.T


@EQUAL.add(bits=True)
def rounding_keeps_signs() -> tuple[tg.Node, tg.Node]:
    return tg.cast(-X, tg.bf16), -tg.cast(X, tg.bf16)


def _count(size: int, dtype: tg.DType) -> tg.Node:
    """Return the number of booleans that are true, counted in floats of a dtype."""
    return tg.cast(tg.sum(tg.cast(tg.input("b", (size,), tg.bool_), dtype)), tg.f32)


U8, I8, I16, SCALAR = tg.input("u", (3,), tg.u8), tg.input("i", (3,), tg.i8), tg.input("i", (3,), tg.i16), tg.input("x", ())
EQUAL.many(
    bits=True,
    as_many_as_bf16_counts=lambda: (_count(256, tg.bf16), _count(256, tg.f32)),
    bytes_in_bf16=lambda: (tg.cast(tg.cast(I8, tg.bf16), tg.f32), tg.cast(I8, tg.f32)),
    bytes_and_two_in_f16=lambda: (tg.cast(tg.cast(U8, tg.f16) + 2.0, tg.f32), tg.cast(U8, tg.f32) + 2.0),
    integers_rounded_at_once=lambda: (tg.cast(tg.cast(I16, tg.f32), tg.bf16), tg.cast(I16, tg.bf16)),
    number_that_bf16_holds=lambda: (SCALAR * tg.cast(tg.constant(257.0, tg.bf16), tg.f32), SCALAR * 256.0),
    threshold_that_bf16_holds=lambda: (
        tg.less(0.125, tg.input("x", (), tg.bf16)), tg.less(0.125, tg.cast(tg.input("x", (), tg.bf16), tg.f32))),
    size_that_bf16_holds=lambda: (
        SCALAR * tg.cast(tg.constant(tg.dim("n", 1, 256), tg.bf16), tg.f32), SCALAR * tg.constant(tg.dim("n", 1, 256), tg.f32)),
)
EQUAL.many(
    root_of_a_sum_of_tenths=lambda: (
        tg.sqrt(tg.constant(0.1) + tg.constant(0.2)) * SCALAR, tg.sqrt(tg.constant(0.3)) * SCALAR),
    tenths_that_add_up=lambda: (tg.floor(tg.constant(0.1) + tg.constant(0.2) + tg.constant(0.7)) * SCALAR, SCALAR),
    scale_by_a_root=lambda: (SCALAR * 8.0**-0.5, SCALAR / tg.sqrt(tg.constant(8.0))),
)

# ---- integers that float64 does not hold -----------------------------------------------------------------------------

I64, U64 = tg.input("i", (3,), tg.i64), tg.input("v", (3,), tg.u64)


def _number(x: tg.Node) -> tg.Node:
    return tg.cast(x, tg.f64)


def _near(x: tg.Node) -> tg.Node:
    """Some numbers from 2^60 to 2^60 + 7."""
    return tg.bit_and(x, 7) | 2**60


def _true(shape: tuple[int, ...]) -> tg.Node:
    return fill(True, shape, tg.bool_)


UNREFUTED.many(
    order_of_long_integers=lambda: (tg.less(_number(I64), _number(tg.bit_or(I64, 1))), tg.less(I64, tg.bit_or(I64, 1))),
    long_integers_that_differ=lambda: (tg.not_equal(_number(I64), _number(tg.bit_xor(I64, 1))), _true((3,))),
    long_numbers_that_differ=lambda: (
        tg.less(_number(tg.constant(2**53, tg.i64)), _number(tg.constant(2**53 + 1, tg.i64))), tg.constant(True)),
    below_the_end_of_i64=lambda: (tg.less(_number(I64), 2.0**63), _true((3,))),
    below_the_end_of_u64=lambda: (tg.less(_number(U64), 2.0**64), _true((3,))),
    place_of_the_largest=lambda: (tg.argmax(_number(_near(I64)), axis=0), tg.argmax(_near(I64), axis=0)),
    places_of_the_largest=lambda: (tg.topk(_number(_near(I64)), k=2)[1], tg.topk(_near(I64), k=2)[1]),
    is_the_largest=lambda: (tg.equals(_number(_near(I64)), tg.reduce_max(_number(_near(I64)))),
                            tg.equals(_near(I64), tg.reduce_max(_near(I64)))),
    order_of_long_products=lambda: (lambda p: (tg.less(_number(p), _number(tg.bit_or(p, 1))), tg.less(p, tg.bit_or(p, 1))))(
        tg.cast(tg.input("p", (64,), tg.i32), tg.i64) * tg.cast(tg.input("q", (64,), tg.i32), tg.i64)),
    maximum_over_none=lambda: (lambda v: (tg.relu(tg.reduce_max(v)), tg.relu(tg.reduce_max(tg.relu(v)))))(
        tg.input("x", (tg.dim("n", 0, 9),))),
    nearly_zero=lambda: (tg.less(0.0, tg.erfc(SCALAR * SCALAR + 40.0)), tg.constant(True)),
    nearly_one=lambda: (tg.less(tg.erf(SCALAR * SCALAR + 20.0), 1.0), tg.constant(True)),
    too_small_to_differ=lambda: (tg.equals(tg.exp(SCALAR - 1000.0), tg.exp(tg.input("y", ()) - 1000.0)),
                                 tg.equals(SCALAR, tg.input("y", ()))),
    too_near_to_one=lambda: (tg.less(tg.tanh(SCALAR * 100.0), tg.tanh(tg.input("y", ()) * 100.0)), tg.less(SCALAR, tg.input("y", ()))),
)
