/* elementwise.c: one number in, one number out: arithmetic, activations and the gated forms. f32.
 *
 * Every loop body is plain arithmetic, so that the compiler vectorises it. out may be the same memory as an input. */
#include "loops.h"
#include "vec.h"

/* ptr: out, a, b.  ints: see PAIRS. */
PAIRS(tg_add, float, 1, x + y)
PAIRS(tg_sub, float, 1, x - y)
PAIRS(tg_mul, float, 1, x *y)
PAIRS(tg_div, float, 1, x / y)
PAIRS(tg_max, float, 1, f32_max(x, y))

/* ptr: out, a.  ints: count.  floats: s (rounded to f32). */
#define SCALAR(name, expression)                                                                    \
    TG_INLINE void name##_rows(const call *c, int64_t from, int64_t to) {                           \
        float *out = c->ptr[0];                                                                     \
        const float *a = c->ptr[1], s = (float)c->floats[0];                                        \
        for (int64_t i = from; i < to; i++) {                                                       \
            float x = a[i];                                                                         \
            out[i] = expression;                                                                    \
        }                                                                                           \
    }                                                                                               \
    ROWS_KERNEL(name, ints[0], 1, name##_rows)

SCALAR(tg_add_scalar, x + s)
SCALAR(tg_sub_scalar, x - s)
SCALAR(tg_rsub_scalar, s - x)
SCALAR(tg_mul_scalar, x *s)
SCALAR(tg_div_scalar, x / s)
SCALAR(tg_max_scalar, f32_max(x, s))

/* --- activations --- */

/* x times the logistic function of (t ln 2): x / (1 + 2^-|t|), times 2^-|t| when t < 0. */
TG_INLINE float sigmoid_times(float x, double t) {
    scaled e = exp2_scaled(t < 0 ? t : -t);
    float below = x * e.fraction * e.s1 * e.s2; /* x first: x * 2^t may be a normal number where 2^t is not */
    return (t < 0 ? below : x) / (1.0f + e.fraction * e.s1 * e.s2);
}

static const double LOG2E = 1.4426950408889634;

/* gelu(x), tanh form = x * sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3) (Hendrycks and Gimpel, 2016). */
TG_INLINE float gelu_tanh(float x) {
    double d = x;
    return sigmoid_times(x, d * (2.0 * 0.79788456080286536 * 1.4426950408889634) * (1.0 + 0.044715 * d * d));
}

TG_INLINE float silu(float x) { return sigmoid_times(x, (double)x * LOG2E); }
TG_INLINE float sigmoid(float x) { return sigmoid_times(1.0f, (double)x * LOG2E); }

/* gelu(x) = x * Phi(x). Phi(-a) = erfc(a / sqrt 2) / 2 = e^(-a^2 / 2) t P(t) / 2 with t = 1 / (1 + 0.4 a / sqrt 2). */
TG_INLINE float gelu_erf(float x) {
    double a = x < 0 ? -(double)x : (double)x;
    double t = 1.0 / (1.0 + 0.28284271247461901 * a);
    scaled e = exp2_scaled(a * a * (-0.5 * 1.4426950408889634));
    float front = (float)(0.5 * t * erfcx_series(t)) * e.fraction;
    float below = x * front * e.s1 * e.s2, above = x * (1.0f - front * e.s1 * e.s2);
    return x < 0 ? below : above;
}

/* ptr: out, x.  ints: see UNARY. */
UNARY(tg_gelu_tanh, float, 8, gelu_tanh(x))
UNARY(tg_gelu_erf, float, 8, gelu_erf(x))
UNARY(tg_silu, float, 8, silu(x))
UNARY(tg_sigmoid, float, 8, sigmoid(x))
UNARY(tg_tanh, float, 8, f32_tanh(x))
UNARY(tg_exp, float, 8, f32_exp(x))

/* out[n,d] = act(gate) * up, out contiguous, gate and up with row strides (a fused [n,2d] product is cut by pointers).
 * ptr: out, gate, up.  ints: n, d, gate_stride, up_stride. */
#define GATED(name, act)                                                                            \
    TG_INLINE void name##_rows(const call *c, int64_t from, int64_t to) {                           \
        const int64_t d = c->ints[1];                                                               \
        for (int64_t i = from; i < to;) {                                                           \
            int64_t row = i / d, end = tg_min(to, (row + 1) * d), j = i - row * d;                  \
            float *out = (float *)c->ptr[0] + i;                                                    \
            const float *gate = (const float *)c->ptr[1] + row * c->ints[2] + j;                    \
            const float *up = (const float *)c->ptr[2] + row * c->ints[3] + j;                      \
            for (int64_t l = 0; l < end - i; l++) out[l] = act(gate[l]) * up[l];                    \
            i = end;                                                                                \
        }                                                                                           \
    }                                                                                               \
    ROWS_KERNEL(name, ints[0] * ints[1], 8, name##_rows)

GATED(tg_gelu_tanh_mul, gelu_tanh)
GATED(tg_gelu_erf_mul, gelu_erf)
GATED(tg_silu_mul, silu)
