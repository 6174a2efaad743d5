/* wide.h: vectors of doubles, weights widened as they are read, and the functions of f64 that the wide kernels share.
 *
 * A wide kernel has f64 activations; its weights are f32, bf16 or f64 and are widened on the way, never in memory. */
#ifndef TG_WIDE_H
#define TG_WIDE_H

#include "vec.h"

#define VD (VW / 2) /* doubles in a register */

typedef double vd __attribute__((vector_size(VD * 8)));
typedef double vdu __attribute__((vector_size(VD * 8), aligned(8), may_alias));
typedef float vn __attribute__((vector_size(VD * 4))); /* as many floats as a register has doubles */
typedef float vnu __attribute__((vector_size(VD * 4), aligned(4), may_alias));
typedef uint32_t vnw __attribute__((vector_size(VD * 4)));

TG_INLINE vd d_load(const double *p) { return *(const vdu *)p; }
TG_INLINE void d_store(double *p, vd v) { *(vdu *)p = v; }
TG_INLINE vd d_splat(double x) { return x - (vd){0}; }

/* A loop over memory because gcc 12 makes of that, unlike of __builtin_convertvector on 8 lanes, a whole conversion. */
TG_INLINE vd d_widen(vn v) {
    float narrow[VD];
    double lane[VD];
    vd wide;
    memcpy(narrow, &v, sizeof narrow);
    for (int l = 0; l < VD; l++) lane[l] = narrow[l];
    memcpy(&wide, lane, sizeof wide);
    return wide;
}

TG_INLINE double d_sum(vd v) {
    double sum = 0;
    for (int l = 0; l < VD; l++) sum += v[l];
    return sum;
}

TG_INLINE uint64_t bits_of_f64(double x) {
    uint64_t bits;
    memcpy(&bits, &x, 8);
    return bits;
}

TG_INLINE double f64_of(uint64_t bits) {
    double x;
    memcpy(&x, &bits, 8);
    return x;
}

/* As f32_max. */
TG_INLINE double f64_max(double x, double y) {
    double m = x != y ? x : f64_of(bits_of_f64(x) & bits_of_f64(y)); /* of a NaN every comparison but this one fails: x stays */
    m = x < y ? y : m;
    return y != y ? y : m;
}

/* 2^n for -1022 <= n <= 1023, n given as the bits of n + 1.5 * 2^52. */
#define ROUND_SHIFT 6755399441055744.0 /* 1.5 * 2^52: adding it rounds to an integer, left in the low bits */
TG_INLINE double f64_exp2_shifted(double shifted) {
    return f64_of((bits_of_f64(shifted) - bits_of_f64(ROUND_SHIFT) + 1023) << 52);
}

/* e^x in f64, relative error below 3e-16 where the result is normal; a loop over it vectorises. Inf, NaN and underflow as in
 * exp. x = n ln 2 + r as in f32_exp: the first piece of ln 2 has 40 bits, so that n times it is exact. */
TG_INLINE double f64_exp(double x) {
    double a = x > 710.0 ? 710.0 : x; /* comparisons that a NaN fails keep it */
    a = a < -746.0 ? -746.0 : a;
    double whole = (a * 1.4426950408889634 + ROUND_SHIFT) - ROUND_SHIFT;
    double r = (a - whole * 0.6931471805592082) - whole * 7.371002565167799e-13;
    double p = 1.0 / 6227020800.0; /* Taylor to r^13: |r| <= 0.347, the rest is below 5e-18 */
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * (r * r) + r + 1.0;
    double half = whole * 0.5 + ROUND_SHIFT; /* in two steps: 2^n alone may be neither finite nor normal */
    double rest = (whole - (half - ROUND_SHIFT)) + ROUND_SHIFT;
    return p * f64_exp2_shifted(half) * f64_exp2_shifted(rest);
}

/* tanh x = -t / (2 + t), t = e^(-2|x|) - 1, which below 1/2 is its own series: relative error of a few 1e-16 at any x. */
TG_INLINE double f64_tanh(double x) {
    double a = x < 0 ? -x : x, y = -2.0 * a;
    double p = 1.0 / 1307674368000.0; /* to y^14 / 15!: |y| < 1/2, the rest is below 1e-17 */
    p = p * y + 1.0 / 87178291200.0;
    p = p * y + 1.0 / 6227020800.0;
    p = p * y + 1.0 / 479001600.0;
    p = p * y + 1.0 / 39916800.0;
    p = p * y + 1.0 / 3628800.0;
    p = p * y + 1.0 / 362880.0;
    p = p * y + 1.0 / 40320.0;
    p = p * y + 1.0 / 5040.0;
    p = p * y + 1.0 / 720.0;
    p = p * y + 1.0 / 120.0;
    p = p * y + 1.0 / 24.0;
    p = p * y + 1.0 / 6.0;
    p = p * y + 0.5;
    double near = y + y * y * p, t = y > -0.5 ? near : f64_exp(y) - 1.0;
    double size = t / (-2.0 - t);
    return x < 0 ? -size : size;
}

#endif
