/* rows.h: what kernels share that make one result of each row of the last axis, and the bodies of layer_norm and softmax in f32 and
 * f64; weights of any float dtype. */
#include "loops.h"
#include "real.h"

/* Sums run in four vectors' worth of lanes and are folded in f64. */
enum { LANES = 4 * VR };

/* By halves: a chain of as many additions as there are lanes takes longer than a row of 1024. */
TG_INLINE double lanes_total(const real *lane) {
    double part[VR];
    for (int l = 0; l < VR; l++) part[l] = ((double)lane[l] + lane[VR + l]) + ((double)lane[2 * VR + l] + lane[3 * VR + l]);
    for (int half = VR / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++) part[l] += part[half + l];
    return part[0];
}

/* Whether what lanes of f32 came to left their range: a sum is infinite or NaN, one of squares also too small for all digits. */
TG_INLINE int overflowed(double total) { return sizeof(real) == 4 && !(__builtin_fabs(total) < __builtin_inf()); }
TG_INLINE int out_of_range(double squares) { return overflowed(squares) || (sizeof(real) == 4 && squares < 0x1p-90); }

TG_INLINE double sum(const real *x, int64_t d) {
    real lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= d; i += LANES)
        for (int l = 0; l < LANES; l++) lane[l] += x[i + l];
    double total = lanes_total(lane);
    for (; i < d; i++) total += x[i];
    if (overflowed(total))
        for (total = 0, i = 0; i < d; i++) total += x[i];
    return total;
}

/* Both moments in one pass: *first of x - centre, *second of its square. */
TG_INLINE void moments(const real *x, int64_t d, real centre, double *first, double *second) {
    real one[LANES] = {0}, two[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= d; i += LANES)
        for (int l = 0; l < LANES; l++) {
            real v = x[i + l] - centre;
            one[l] += v;
            two[l] += v * v;
        }
    *first = lanes_total(one), *second = lanes_total(two);
    for (; i < d; i++) {
        double v = (double)x[i] - centre;
        *first += v, *second += v * v;
    }
    if (out_of_range(*second))
        for (*first = *second = 0, i = 0; i < d; i++) {
            double v = (double)x[i] - centre;
            *first += v, *second += v * v;
        }
}

/* Calls f(..., dtype) with a constant dtype; only what is f64 has weights of f64. */
#ifdef TG_WIDE_H
#define BY_DTYPE(dtype, f, ...)                       \
    switch (dtype) {                                  \
        case TG_F32: f(__VA_ARGS__, TG_F32); break;   \
        case TG_BF16: f(__VA_ARGS__, TG_BF16); break; \
        case TG_F64: f(__VA_ARGS__, TG_F64); break;   \
    }
#else
#define BY_DTYPE(dtype, f, ...)                       \
    switch (dtype) {                                  \
        case TG_F32: f(__VA_ARGS__, TG_F32); break;   \
        case TG_BF16: f(__VA_ARGS__, TG_BF16); break; \
    }
#endif

enum { ABSENT = -1 }; /* the dtype of a weight that is not given */

/* out = ((x - centre) - rest) * scale * w + b; out may be x. */
TG_INLINE void scaled_row(real *out, const real *x, int64_t d, real centre, real rest, real scale, const void *w, const int64_t w_dtype,
                          const void *b, const int64_t b_dtype) {
    #pragma GCC ivdep
    for (int64_t i = 0; i < d; i++) {
        real y = ((x[i] - centre) - rest) * scale;
        if (w_dtype != ABSENT) y *= (real)widened(w, w_dtype, i);
        if (b_dtype != ABSENT) y += (real)widened(b, b_dtype, i);
        out[i] = y;
    }
}

TG_INLINE void weighed_row(real *out, const real *x, int64_t d, real centre, real rest, real scale, const void *b, int64_t b_dtype,
                           const void *w, const int64_t w_dtype) {
    if (b) BY_DTYPE(b_dtype, scaled_row, out, x, d, centre, rest, scale, w, w_dtype, b)
    else scaled_row(out, x, d, centre, rest, scale, w, w_dtype, b, ABSENT);
}

TG_INLINE void layer_rows(const call *c, int64_t from, int64_t to) {
    const int64_t d = c->ints[1];
    const void *w = c->ptr[2], *b = c->ptr[3];
    for (int64_t row = from; row < to; row++) {
        const real *x = (const real *)c->ptr[1] + row_at(c->ints + 4, row, d);
        real *out = (real *)c->ptr[0] + row * d;
        const real centre = (real)(sum(x, d) / (double)d);
        double first, second;
        moments(x, d, centre, &first, &second);
        const double off = first / (double)d; /* what the first sum, of large numbers, rounded away */
        /* sum((x - mean)^2) = sum((x - centre)^2) - d (mean - centre)^2 */
        const double variance = second / (double)d - off * off;
        const real scale = (real)(1.0 / __builtin_sqrt((variance > 0 || variance != variance ? variance : 0) + c->floats[0]));
        if (w) BY_DTYPE(c->ints[2], weighed_row, out, x, d, centre, (real)off, scale, b, c->ints[3], w)
        else weighed_row(out, x, d, centre, (real)off, scale, b, c->ints[3], w, ABSENT);
    }
}

TG_INLINE real row_max(const real *x, int64_t d) {
    real lane[LANES], best = -__builtin_inff();
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
        const real *x = (const real *)c->ptr[1] + row_at(c->ints + 2, row, d);
        real *out = (real *)c->ptr[0] + row * d;
        real most = row_max(x, d); /* a NaN comes back with the exponentials: the sum is NaN, and so is the whole row */
        for (int64_t i = 0; i < d; i++) out[i] = r_exp(x[i] - most);
        real scale = (real)(1.0 / sum(out, d));
        for (int64_t i = 0; i < d; i++) out[i] *= scale;
    }
}
