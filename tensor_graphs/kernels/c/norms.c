/* norms.c: rms_norm, layer_norm, residual add + rms_norm and softmax of f32 rows. */
#include "rows.h"

/* out[n,d] = x * rsqrt(mean(x^2) + eps) * (offset + w); w NULL: without the last factor.
 * ptr: out, x, w or NULL.  ints: n, d, w_dtype, group, far, near (of x: row_at).  floats: eps, offset. */
ROWS_KERNEL(tg_rms_norm, ints[0], ints[1], rms_rows)

TG_INLINE void add_rms_rows(const call *c, int64_t from, int64_t to) {
    const int64_t d = c->ints[1];
    for (int64_t row = from; row < to; row++) {
        float *total = (float *)c->ptr[0] + row * d;
        const float *x = (const float *)c->ptr[2] + row * d, *y = (const float *)c->ptr[3] + row * d;
        for (int64_t i = 0; i < d; i++) total[i] = x[i] + y[i];
        rms_row((float *)c->ptr[1] + row * d, total, d, c->ptr[4], c->ints[2], c->floats);
    }
}

/* sum[n,d] = x + y; normed[n,d] = rms_norm(sum). sum may be the memory of x or y.
 * ptr: sum, normed, x, y, w or NULL.  ints: n, d, w_dtype.  floats: eps, offset. */
ROWS_KERNEL(tg_add_rms_norm, ints[0], ints[1], add_rms_rows)

/* out[n,d] = (x - mean(x)) * rsqrt(var(x) + eps) * w + b.
 * ptr: out, x, w or NULL, b or NULL.  ints: n, d, w_dtype, b_dtype, group, far, near (of x).  floats: eps. */
ROWS_KERNEL(tg_layer_norm, ints[0], ints[1], layer_rows)

/* out[n,d] = e^(x - max) / sum. A row with NaN, +inf or nothing but -inf is NaN.
 * ptr: out, x.  ints: n, d, group, far, near (of x). */
ROWS_KERNEL(tg_softmax, ints[0], 4 * ints[1], softmax_rows)
