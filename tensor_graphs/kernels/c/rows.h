/* rows.h: what kernels share that make one result of each row of the last axis, and the body of softmax in f32 and f64. */
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
