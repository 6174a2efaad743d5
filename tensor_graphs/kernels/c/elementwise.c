/* elementwise.c: one number in, one number out: arithmetic and activations. f32.
 *
 * Every loop body is plain arithmetic, so that the compiler vectorises it. out may be the same memory as an input. */
#include "activations.h"
#include "loops.h"

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

/* ptr: out, x.  ints: see UNARY. */
UNARY(tg_gelu_tanh, float, 8, gelu_tanh(x))
UNARY(tg_gelu_erf, float, 8, gelu_erf(x))
UNARY(tg_silu, float, 8, silu(x))
UNARY(tg_sigmoid, float, 8, sigmoid(x))
UNARY(tg_tanh, float, 8, f32_tanh(x))
UNARY(tg_exp, float, 8, f32_exp(x))
