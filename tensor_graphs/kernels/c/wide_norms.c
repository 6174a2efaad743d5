/* wide_norms.c: norms.c in f64: rms_norm, layer_norm, softmax; weights of any float dtype. */
#include "loops.h"
#include "wide.h"

/* Sums run in four vectors' worth of lanes; `centre` is taken off first. */
enum { LANES = 4 * VD };

TG_INLINE double lanes_total(const double *lane) {
    double total = 0;
    for (int l = 0; l < LANES; l++) total += lane[l];
    return total;
}

TG_INLINE double sum_squares(const double *x, int64_t d, double centre) {
    double lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= d; i += LANES)
        for (int l = 0; l < LANES; l++) lane[l] += (x[i + l] - centre) * (x[i + l] - centre);
    double total = lanes_total(lane);
    for (; i < d; i++) total += (x[i] - centre) * (x[i] - centre);
    return total;
}

TG_INLINE double sum(const double *x, int64_t d, double centre) {
    double lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= d; i += LANES)
        for (int l = 0; l < LANES; l++) lane[l] += x[i + l] - centre;
    double total = lanes_total(lane);
    for (; i < d; i++) total += x[i] - centre;
    return total;
}

/* Calls f(..., dtype) with a constant dtype. */
#define BY_DTYPE(dtype, f, ...)                          \
    switch (dtype) {                                     \
        case TG_F32: f(__VA_ARGS__, TG_F32); break;      \
        case TG_BF16: f(__VA_ARGS__, TG_BF16); break;    \
        case TG_F64: f(__VA_ARGS__, TG_F64); break;      \
    }

TG_INLINE void weigh(double *out, const double *x, int64_t d, double scale, double offset, const void *w, const int64_t dtype) {
    for (int64_t i = 0; i < d; i++) out[i] = x[i] * scale * (offset + widened(w, dtype, i));
}

TG_INLINE void shift(double *out, int64_t d, const void *b, const int64_t dtype) {
    for (int64_t i = 0; i < d; i++) out[i] += widened(b, dtype, i);
}

TG_INLINE void rms_rows(const call *c, int64_t from, int64_t to) {
    const int64_t d = c->ints[1];
    for (int64_t row = from; row < to; row++) {
        const double *x = (const double *)c->ptr[1] + row_at(c->ints + 3, row, d);
        double *out = (double *)c->ptr[0] + row * d;
        double scale = 1.0 / __builtin_sqrt(sum_squares(x, d, 0.0) / (double)d + c->floats[0]);
        if (c->ptr[2]) BY_DTYPE(c->ints[2], weigh, out, x, d, scale, c->floats[1], c->ptr[2])
        else
            for (int64_t i = 0; i < d; i++) out[i] = x[i] * scale;
    }
}

/* out[n,d] = x * rsqrt(mean(x^2) + eps) * (offset + w); w NULL: without the last factor.
 * ptr: out, x, w or NULL.  ints: n, d, w_dtype, group, far, near (of x: row_at).  floats: eps, offset. */
ROWS_KERNEL(tg_rms_norm_f64, ints[0], 2 * ints[1], rms_rows)

TG_INLINE void layer_rows(const call *c, int64_t from, int64_t to) {
    const int64_t d = c->ints[1];
    const void *w = c->ptr[2], *b = c->ptr[3];
    for (int64_t row = from; row < to; row++) {
        const double *x = (const double *)c->ptr[1] + row_at(c->ints + 4, row, d);
        double *out = (double *)c->ptr[0] + row * d;
        double centre = sum(x, d, 0.0) / (double)d;
        double rest = sum(x, d, centre) / (double)d; /* what the first sum, of large numbers, rounded away */
        /* sum((x - mean)^2) = sum((x - centre)^2) - d (mean - centre)^2 */
        double variance = sum_squares(x, d, centre) / (double)d - rest * rest;
        double scale = 1.0 / __builtin_sqrt((variance > 0 || variance != variance ? variance : 0) + c->floats[0]);
        for (int64_t i = 0; i < d; i++) out[i] = ((x[i] - centre) - rest) * scale;
        if (w) BY_DTYPE(c->ints[2], weigh, out, out, d, 1.0, 0.0, w)
        if (b) BY_DTYPE(c->ints[3], shift, out, d, b)
    }
}

/* out[n,d] = (x - mean(x)) * rsqrt(var(x) + eps) * w + b.
 * ptr: out, x, w or NULL, b or NULL.  ints: n, d, w_dtype, b_dtype, group, far, near (of x).  floats: eps. */
ROWS_KERNEL(tg_layer_norm_f64, ints[0], 2 * ints[1], layer_rows)

TG_INLINE double row_max(const double *x, int64_t d) {
    double lane[LANES], best = -__builtin_inf();
    for (int l = 0; l < LANES; l++) lane[l] = best;
    int64_t i = 0;
    for (; i + LANES <= d; i += LANES)
        for (int l = 0; l < LANES; l++) lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l]; /* a NaN is passed over */
    for (; i < d; i++) best = x[i] > best ? x[i] : best;
    for (int l = 0; l < LANES; l++) best = lane[l] > best ? lane[l] : best;
    return best;
}

TG_INLINE void softmax_rows(const call *c, int64_t from, int64_t to) {
    const int64_t d = c->ints[1];
    for (int64_t row = from; row < to; row++) {
        const double *x = (const double *)c->ptr[1] + row_at(c->ints + 2, row, d);
        double *out = (double *)c->ptr[0] + row * d;
        double most = row_max(x, d); /* a NaN comes back with the exponentials: the sum is NaN, and so is the whole row */
        for (int64_t i = 0; i < d; i++) out[i] = f64_exp(x[i] - most);
        double scale = 1.0 / sum(out, d, 0.0);
        for (int64_t i = 0; i < d; i++) out[i] *= scale;
    }
}

/* out[n,d] = e^(x - max) / sum. A row with NaN, +inf or nothing but -inf is NaN.
 * ptr: out, x.  ints: n, d, group, far, near (of x). */
ROWS_KERNEL(tg_softmax_f64, ints[0], 8 * ints[1], softmax_rows)
