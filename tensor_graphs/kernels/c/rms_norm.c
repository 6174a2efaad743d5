/* rms_norm.c: rms_norm of f32 rows. */
#include "rows.h"

/* Calls f(..., dtype) with a constant dtype. */
#define BY_DTYPE(dtype, f, ...)                       \
    switch (dtype) {                                  \
        case TG_F32: f(__VA_ARGS__, TG_F32); break;   \
        case TG_BF16: f(__VA_ARGS__, TG_BF16); break; \
    }

TG_INLINE double sum_squares(const float *x, int64_t d) {
    float lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= d; i += LANES)
        for (int l = 0; l < LANES; l++) lane[l] += x[i + l] * x[i + l];
    double total = lanes_total(lane);
    for (; i < d; i++) total += (double)x[i] * x[i];
    if (out_of_range(total))
        for (total = 0, i = 0; i < d; i++) total += (double)x[i] * x[i];
    return total;
}

/* out = x * scale * (offset + w), rounded once. */
TG_INLINE void weigh(float *out, const float *x, int64_t d, double scale, double offset, const void *w, const int64_t dtype) {
    for (int64_t i = 0; i < d; i++) out[i] = (float)(x[i] * scale * (offset + widened(w, dtype, i)));
}

/* out = x / rms(x) * (offset + w); w NULL: without the last factor. eps, offset: floats[0], floats[1]. */
TG_INLINE void rms_row(float *out, const float *x, int64_t d, const void *w, int64_t dtype, const double *floats) {
    double scale = 1.0 / __builtin_sqrt(sum_squares(x, d) / (double)d + floats[0]);
    if (w) BY_DTYPE(dtype, weigh, out, x, d, scale, floats[1], w)
    else
        for (int64_t i = 0; i < d; i++) out[i] = (float)(x[i] * scale);
}

TG_INLINE void rms_rows(const call *c, int64_t from, int64_t to) {
    const int64_t d = c->ints[1];
    for (int64_t row = from; row < to; row++)
        rms_row((float *)c->ptr[0] + row * d, (const float *)c->ptr[1] + row_at(c->ints + 3, row, d), d, c->ptr[2], c->ints[2], c->floats);
}

/* out[n,d] = x * rsqrt(mean(x^2) + eps) * (offset + w); w NULL: without the last factor.
 * ptr: out, x, w or NULL.  ints: n, d, w_dtype, group, far, near (of x: row_at).  floats: eps, offset. */
ROWS_KERNEL(tg_rms_norm, ints[0], ints[1], rms_rows)
