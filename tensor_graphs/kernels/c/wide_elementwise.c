/* wide_elementwise.c: elementwise.c in f64, and casts between the widths of floats.
 *
 * Every loop body is plain arithmetic, so that the compiler vectorises it. out may be the same memory as an input. */
#include "loops.h"
#include "wide_activations.h"

/* ptr: out, a, b.  ints: see PAIRS. */
PAIRS(tg_add_f64, double, 2, x + y)
PAIRS(tg_sub_f64, double, 2, x - y)
PAIRS(tg_mul_f64, double, 2, x *y)
PAIRS(tg_div_f64, double, 2, x / y)
PAIRS(tg_max_f64, double, 2, f64_max(x, y))

/* ptr: out, x.  ints: see UNARY. */
UNARY(tg_gelu_tanh_f64, double, 16, gelu_tanh(x))
UNARY(tg_gelu_erf_f64, double, 16, gelu_erf(x))
UNARY(tg_silu_f64, double, 16, silu(x))
UNARY(tg_tanh_f64, double, 16, f64_tanh(x))
UNARY(tg_exp_f64, double, 16, f64_exp(x))

/* --- casts --- */

TG_INLINE void cast_from(const call *c, int64_t from, int64_t to, const int64_t dtype) {
    if (c->ints[1] == TG_F64)
        for (int64_t i = from; i < to; i++) ((double *)c->ptr[0])[i] = widened(c->ptr[1], dtype, i);
    else
        for (int64_t i = from; i < to; i++) ((float *)c->ptr[0])[i] = (float)widened(c->ptr[1], dtype, i);
}

TG_INLINE void cast_rows(const call *c, int64_t from, int64_t to) {
    switch (c->ints[2]) {
        case TG_F32: cast_from(c, from, to, TG_F32); break;
        case TG_BF16: cast_from(c, from, to, TG_BF16); break;
        case TG_F64: cast_from(c, from, to, TG_F64); break;
    }
}

/* ptr: out (f32 or f64), x (f32, bf16 or f64).  ints: count, out_dtype, x_dtype. */
ROWS_KERNEL(tg_cast, ints[0], 2, cast_rows)
