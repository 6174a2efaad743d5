/* numbers.h: scalar functions of generated kernels, called DTYPE_OP, beside those of vec.h and wide.h. Loops over them vectorise, but
 * for those that call the C library (sin, and some of f64). */
#ifndef TG_NUMBERS_H
#define TG_NUMBERS_H

#include "loops.h"
#include "turned.h"
#include "wide.h"

#include <math.h>

#include "eight_bits.h"

/* Floats as integers in the same order: NaN above +inf, +0 above -0; a maximum of integers is one loop of one instruction. */
TG_INLINE int32_t order_f32(float x) {
    int32_t bits = (int32_t)bits_of(x);
    bits ^= (bits >> 31) & 0x7fffffff;
    return x != x ? 0x7fc00000 : bits;
}
TG_INLINE float unorder_f32(int32_t key) { return float_of((uint32_t)(key ^ ((key >> 31) & 0x7fffffff))); }
TG_INLINE int64_t order_f64(double x) {
    int64_t bits = (int64_t)bits_of_f64(x);
    bits ^= (bits >> 63) & 0x7fffffffffffffff;
    return x != x ? 0x7ff8000000000000 : bits;
}
TG_INLINE double unorder_f64(int64_t key) { return f64_of((uint64_t)(key ^ ((key >> 63) & 0x7fffffffffffffff))); }

/* 2^x; relative error 1e-7 where the result is normal. */
TG_INLINE float f32_exp2(float x) {
    float a = x > 129.0f ? 129.0f : x; /* comparisons that a NaN fails keep it */
    a = a < -151.0f ? -151.0f : a;
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer, left in the low bits */
    float shifted = a + shift;
    int32_t n = (int32_t)(bits_of(shifted) - 0x4b400000u);
    float whole = shifted - shift;
    int32_t half = n >> 1, rest = n - half; /* in two steps: 2^n alone may be neither finite nor normal */
    return exp2_fraction(a - whole) * exp2_integer(half) * exp2_integer(rest);
}

/* log2 x = e + log2 m, m in [sqrt(1/2), sqrt 2): log2 m = 2 / ln 2 * atanh(s), s = (m - 1) / (m + 1), by its Taylor series. */
TG_INLINE float f32_log2(float x) {
    float raised = x < 1.17549435e-38f ? x * 16777216.0f : x;
    float extra = x < 1.17549435e-38f ? -24.0f : 0.0f;
    uint32_t bits = bits_of(raised);
    int32_t e = (int32_t)(bits - 0x3f3504f3u) >> 23;
    float m = float_of(bits - ((uint32_t)e << 23));
    float s = (m - 1.0f) / (m + 1.0f), z = s * s;
    float p = 0.32059889793532514f;
    p = p * z + 0.41219858305970374f;
    p = p * z + 0.57707801635558535f;
    p = p * z + 0.96179669392597556f;
    p = p * z * s;
    float out = ((float)e + extra) + (2.8853900817779268f * s + p);
    out = x == 0.0f ? -INFINITY : out;
    out = x == INFINITY ? x : out;
    return x < 0.0f ? NAN : x != x ? x : out;
}

/* x y + z, rounded once. */
#ifdef __FP_FAST_FMAF
TG_INLINE float f32_fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
#else
TG_INLINE float f32_fma(float x, float y, float z) { return (float)((double)x * y + z); }
#endif

/* x as two f32, to 48 bits where it is normal: high, cut off, and low, of its sign and 0 only with it, so that infinity times either is
 * the same infinity.
 * In vector registers: the way to others and back would take as long as the rest. */
TG_INLINE double f64_cut(double x) {
    typedef double two __attribute__((vector_size(16)));
    typedef uint64_t bits __attribute__((vector_size(16)));
    const two cut = (two)((bits)(two){x, 0} & (bits){~(uint64_t)0x1fffffff, 0});
    return cut[0];
}
TG_INLINE float f32_high(double x) { return (float)f64_cut(x); }
TG_INLINE float f32_low(double x) {
    const double size = __builtin_fabs(x), high = f64_cut(size);
    const float rest = (float)(size - high), far = (float)high * 0x1p-48f, least = far > 0x1p-149f ? far : 0x1p-149f;
    const float low = rest > least ? rest : least; /* inf - inf is not above it either */
    return __builtin_copysignf(low < (float)high ? low : (float)high, (float)x);
}

/* What is added besides high: nothing where that is all, so that a number less itself is 0. */
TG_INLINE float f32_rest(double x) {
    const float rest = (float)(x - f64_cut(x));
    return rest == rest ? rest : 0; /* of an infinity */
}

/* Returns whether a sum of f32 is infinite or NaN; bool_out_of_range: or a sum of squares so small that f32 has fewer digits of them. */
TG_INLINE int bool_overflowed(double x) { return !(__builtin_fabs(x) < INFINITY); }
TG_INLINE int bool_out_of_range(double x) { return !(__builtin_fabs(x) < INFINITY && __builtin_fabs(x) > 0x1p-90); }

/* x / d, rounded once, by high + low = 1 / d where f32 has that; of a loop over x the compiler makes two. */
TG_INLINE int bool_inverted(double inverse) {
    const double size = __builtin_fabs(inverse), beyond = 0x1.000002p-128; /* of a finite d that is infinite as an f32 */
    return (size < 0x1p126 && size > 0x1p-100) || (size > 0 && size < beyond);
}
TG_INLINE float f32_over(float x, float d, int inverted, float high, float low) {
    if (inverted) return f32_fma(x, high, x * low);
    return x / d;
}

/* erfc z = e^(-z^2) N(z) / D(z), all in f32: a loop over it fills whole registers; relative error 4e-7. 2 - erfc(-x) below 0.
 * N / D is e^(z^2) erfc z on [0, 11] to 7e-9: least squares of N - D e^(z^2) erfc z, each point weighed by 1 / D of the last fit
 * (Sanathanan and Koerner, 1963) and by how large its error was (Lawson, 1961). Of the kind that has positive coefficients, so
 * nothing cancels. p is e^r to 2e-9 for |r| <= ln 2 / 2, by Remez's exchange. */
TG_INLINE float f32_erfc(float x) {
    float z = __builtin_fabsf(x);
    z = 11.0f < z ? 11.0f : z; /* beyond, f32 has 0; a NaN stays */
    /* -z^2 = n ln 2 + r with ln 2 in two pieces, as in f32_exp: only n is of the rounded square, and n + 64 is left in the low bits */
    const float shift = 12582912.0f + 64.0f;
    const float shifted = z * z * -1.4426950408889634f + shift, whole = shifted - shift;
    const float r = f32_fma(-z, z, whole * -0.693359375f) + whole * 2.12194440e-4f;
    float p = 0.0013836771249771118f;
    p = p * r + 0.008374875411391258f;
    p = p * r + 0.041668228805065155f;
    p = p * r + 0.16666419804096222f;
    p = p * r + 0.49999991059303284f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    float n = 0.033538386362494885f;
    n = n * z + 0.23273786046872255f;
    n = n * z + 0.7389677603233125f;
    n = n * z + 1.2454175363439755f;
    n = n * z + 1.0000000067322028f;
    float d = 0.05944465585397795f;
    d = d * z + 0.412540246919859f;
    d = d * z + 1.3391175195908442f;
    d = d * z + 2.417500558136754f;
    d = d * z + 2.373797374626535f;
    d = d * z + 1.0f;
    /* times 2^(n + 64) by the exponent's bits, which stays normal, and by 2^-64 before the one rounding that may not */
    const float scaled = float_of(bits_of(p) + (bits_of(shifted) << 23));
    const float tail = n * 0x1p-64f * scaled / d;
    return x < 0 ? 2.0f - tail : tail;
}

/* erf x = x P(x^2) below 3/4 (its Taylor series), 1 - erfc x beyond. */
TG_INLINE float f32_erf(float x) {
    float q = x * x, a = x < 0 ? -x : x;
    float p = 1.6462115e-06f;
    p = p * q - 1.4925650e-05f;
    p = p * q + 1.2055332e-04f;
    p = p * q - 8.5483270e-04f;
    p = p * q + 5.2239776e-03f;
    p = p * q - 2.6866171e-02f;
    p = p * q + 1.1283792e-01f;
    p = p * q - 3.7612639e-01f;
    p = p * q + 1.1283792f;
    float beyond = 1.0f - f32_erfc(a);
    return a < 0.75f ? x * p : x < 0 ? -beyond : beyond;
}

TG_INLINE int bool_finite(float x) { return __builtin_fabsf(x) < INFINITY; }

/* *sum goes on with what a register of accumulators holds. */
TG_INLINE void f32_add_lanes(double *sum, const float *lane) { *sum += v_sum_wide(v_load(lane)); }

/* x[i] = *running + x[0] + ... + x[i], and *running goes on. The sums of a register are taken by doubling (x[i] + x[i - 1], then
 * over 2, 4, ...) in f32, what is before it is added in f64. */
TG_INLINE void f32_running_sum(float *x, int64_t count, double *running) {
    double sum = *running;
    int64_t i = 0;
#if defined(__GNUC__) && !defined(__clang__)
    typedef int32_t lanes __attribute__((vector_size(VW * 4)));
    lanes lane;
    for (int l = 0; l < VW; l++) lane[l] = l;
    for (; i + VW <= count; i += VW) {
        vf v = v_load(x + i);
        for (int s = 1; s < VW; s *= 2) v += __builtin_shuffle(v, (vf){0}, lane - s); /* indices are taken modulo 2 VW: below 0 are zeros */
        float low[VW];
        double wide[VW];
        memcpy(low, &v, sizeof low);
        for (int l = 0; l < VW; l++) wide[l] = low[l] + sum;
        for (int l = 0; l < VW; l++) x[i + l] = (float)wide[l];
        sum = wide[VW - 1];
    }
#endif
    for (; i < count; i++) x[i] = (float)(sum += x[i]);
    *running = sum;
}

/* a b, rounded also where something is added to it: compilers fuse a product with a sum, and no fused multiply-add with one. */
#if defined(__FMA__) || defined(__AVX512F__) || defined(__FP_FAST_FMAF) || defined(__aarch64__)
TG_INLINE float f32_product(float a, float b) { return __builtin_fmaf(a, b, -0.0f); }
TG_INLINE double f64_product(double a, double b) { return __builtin_fma(a, b, -0.0); }
#else
TG_INLINE float f32_product(float a, float b) { return a * b; }
TG_INLINE double f64_product(double a, double b) { return a * b; }
#endif

/* x - trunc(x / y) y, exactly. fmod takes 100 ns and more; where the quotient has few bits, one step of a long division is exact: in
 * f32 the product with it is, in f64 a fused multiply-add, whose quotient may have been rounded up to a whole number. */
TG_INLINE float f32_fmod(float x, float y) {
    const double quotient = (double)x / y;
    if (!(fabs(quotient) < 0x1p28)) return fmodf(x, y);
    const int32_t whole = (int32_t)quotient;
    return whole == 0 ? x : (float)(x - whole * (double)y);
}
TG_INLINE double f64_fmod(double x, double y) {
#ifdef __FP_FAST_FMA
    const double quotient = x / y;
    if (fabs(quotient) < 0x1p51) {
        const double whole = (double)(int64_t)quotient, rest = whole == 0 ? x : __builtin_fma(-whole, y, x);
        return rest != 0 && (rest < 0) != (x < 0) ? rest + copysign(y, x) : rest;
    }
#endif
    return fmod(x, y);
}

#include "functions.h"
#include "integers.h"

/* floor(a / b) and a mod b of indices, b > 0. */
TG_INLINE int64_t floor_div(int64_t a, int64_t b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

#endif
