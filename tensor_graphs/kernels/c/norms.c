/* norms.c: rms_norm, layer_norm, residual add + rms_norm, softmax, argmax: one result per row of the last axis. */
#include "loops.h"
#include "vec.h"

TG_INLINE float weight_at(const void *w, int64_t dtype, int64_t i) {
    return dtype == TG_BF16 ? bf16_to_f32(((const uint16_t *)w)[i]) : ((const float *)w)[i];
}

/* Sums run in four vectors' worth of f32 lanes and are folded in f64; `centre` is taken off first. */
enum { LANES = 4 * VW };

TG_INLINE double lanes_total(const float *lane) {
    double total = 0;
    for (int l = 0; l < LANES; l++) total += lane[l];
    return total;
}

TG_INLINE double sum_squares(const float *x, int64_t d, float centre) {
    float lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= d; i += LANES)
        for (int l = 0; l < LANES; l++) {
            float v = x[i + l] - centre;
            lane[l] += v * v;
        }
    double total = lanes_total(lane);
    for (; i < d; i++) total += ((double)x[i] - centre) * ((double)x[i] - centre);
    return total;
}

TG_INLINE double sum(const float *x, int64_t d, float centre) {
    float lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= d; i += LANES)
        for (int l = 0; l < LANES; l++) lane[l] += x[i + l] - centre;
    double total = lanes_total(lane);
    for (; i < d; i++) total += (double)x[i] - centre;
    return total;
}

TG_INLINE double square_root(double x) { return __builtin_sqrt(x); }

/* out = x * scale * (offset + w), d wide, rounded once; w NULL: out = x * scale. */
TG_INLINE void scale_row(float *out, const float *x, int64_t d, double scale, const void *w, int64_t dtype, double offset) {
    if (!w)
        for (int64_t i = 0; i < d; i++) out[i] = (float)(x[i] * scale);
    else if (dtype == TG_BF16)
        for (int64_t i = 0; i < d; i++) out[i] = (float)(x[i] * scale * (offset + bf16_to_f32(((const uint16_t *)w)[i])));
    else
        for (int64_t i = 0; i < d; i++) out[i] = (float)(x[i] * scale * (offset + ((const float *)w)[i]));
}

TG_INLINE void rms_rows(const call *c, int64_t from, int64_t to) {
    const int64_t d = c->ints[1];
    for (int64_t row = from; row < to; row++) {
        const float *x = (const float *)c->ptr[1] + row_at(c->ints + 3, row, d);
        double scale = 1.0 / square_root(sum_squares(x, d, 0.0f) / (double)d + c->floats[0]);
        scale_row((float *)c->ptr[0] + row * d, x, d, scale, c->ptr[2], c->ints[2], c->floats[1]);
    }
}

/* out[n,d] = x * rsqrt(mean(x^2) + eps) * (offset + w); w NULL: without the last factor.
 * ptr: out, x, w or NULL.  ints: n, d, w_dtype, group, far, near (of x: row_at).  floats: eps, offset. */
ROWS_KERNEL(tg_rms_norm, ints[0], ints[1], rms_rows)

TG_INLINE void add_rms_rows(const call *c, int64_t from, int64_t to) {
    const int64_t d = c->ints[1];
    for (int64_t row = from; row < to; row++) {
        float *total = (float *)c->ptr[0] + row * d;
        const float *x = (const float *)c->ptr[2] + row * d, *y = (const float *)c->ptr[3] + row * d;
        for (int64_t i = 0; i < d; i++) total[i] = x[i] + y[i];
        double scale = 1.0 / square_root(sum_squares(total, d, 0.0f) / (double)d + c->floats[0]);
        scale_row((float *)c->ptr[1] + row * d, total, d, scale, c->ptr[4], c->ints[2], c->floats[1]);
    }
}

/* sum[n,d] = x + y; normed[n,d] = rms_norm(sum). sum may be the memory of x or y.
 * ptr: sum, normed, x, y, w or NULL.  ints: n, d, w_dtype.  floats: eps, offset. */
ROWS_KERNEL(tg_add_rms_norm, ints[0], ints[1], add_rms_rows)

TG_INLINE void layer_rows(const call *c, int64_t from, int64_t to) {
    const int64_t d = c->ints[1];
    const void *w = c->ptr[2], *b = c->ptr[3];
    for (int64_t row = from; row < to; row++) {
        const float *x = (const float *)c->ptr[1] + row_at(c->ints + 4, row, d);
        float *out = (float *)c->ptr[0] + row * d;
        float centre = (float)(sum(x, d, 0.0f) / (double)d);
        double off = sum(x, d, centre) / (double)d; /* what the first sum, of large numbers, rounded away */
        float rest = (float)off;
        /* sum((x - mean)^2) = sum((x - centre)^2) - d (mean - centre)^2 */
        double variance = sum_squares(x, d, centre) / (double)d - off * off;
        float scale = (float)(1.0 / square_root((variance > 0 || variance != variance ? variance : 0) + c->floats[0]));
        for (int64_t i = 0; i < d; i++) out[i] = ((x[i] - centre) - rest) * scale;
        if (w)
            for (int64_t i = 0; i < d; i++) out[i] *= weight_at(w, c->ints[2], i);
        if (b)
            for (int64_t i = 0; i < d; i++) out[i] += weight_at(b, c->ints[3], i);
    }
}

/* out[n,d] = (x - mean(x)) * rsqrt(var(x) + eps) * w + b.
 * ptr: out, x, w or NULL, b or NULL.  ints: n, d, w_dtype, b_dtype, group, far, near (of x).  floats: eps. */
ROWS_KERNEL(tg_layer_norm, ints[0], ints[1], layer_rows)

TG_INLINE float row_max(const float *x, int64_t d) {
    float lane[LANES], best = -__builtin_inff();
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
        const float *x = (const float *)c->ptr[1] + row_at(c->ints + 2, row, d);
        float *out = (float *)c->ptr[0] + row * d;
        float most = row_max(x, d); /* a NaN comes back with the exponentials: the sum is NaN, and so is the whole row */
        for (int64_t i = 0; i < d; i++) out[i] = f32_exp(x[i] - most);
        float scale = (float)(1.0 / sum(out, d, 0.0f));
        for (int64_t i = 0; i < d; i++) out[i] *= scale;
    }
}

/* out[n,d] = e^(x - max) / sum. A row with NaN, +inf or nothing but -inf is NaN.
 * ptr: out, x.  ints: n, d, group, far, near (of x). */
ROWS_KERNEL(tg_softmax, ints[0], 4 * ints[1], softmax_rows)
