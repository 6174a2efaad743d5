/* vec.h: one vector of floats as wide as the machine's registers, and the exponential the kernels share.
 *
 * Only compiler vector extensions: the same source is AVX-512, AVX2, SSE2 or NEON by flags alone. */
#ifndef TG_VEC_H
#define TG_VEC_H

#include "tg.h"

#include <string.h>

#if defined(__AVX512F__)
#define VW 16
#elif defined(__AVX__)
#define VW 8
#else
#define VW 4
#endif

typedef float vf __attribute__((vector_size(VW * 4)));
typedef float vfu __attribute__((vector_size(VW * 4), aligned(4), may_alias));
typedef uint32_t vu __attribute__((vector_size(VW * 4)));
typedef uint16_t vh __attribute__((vector_size(VW * 2)));
typedef float v4 __attribute__((vector_size(16)));
typedef double v4d __attribute__((vector_size(32)));

TG_INLINE vf v_load(const float *p) { return *(const vfu *)p; }
TG_INLINE void v_store(float *p, vf v) { *(vfu *)p = v; }

/* x in every lane (x - 0 is x, whatever x is, so the subtraction folds; 0 + x would not: -0). */
TG_INLINE vf v_splat(float x) { return x - (vf){0}; }

/* bfloat16 is the upper half of a float32. */
TG_INLINE float bf16_to_f32(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float out;
    memcpy(&out, &wide, 4);
    return out;
}

TG_INLINE uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

TG_INLINE float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* IEEE half precision. To f32 by its bits, since GCC 12 does not vectorise its own conversion: a loop that reads weights of f16 took 2.7
 * times as long with it. Subnormal numbers are the difference of two normal ones; infinities and NaN get all bits of the exponent. */
TG_INLINE float f32_of_f16(uint16_t half) {
    const uint32_t size = (half & 0x7fffu) << 13, sign = (half & 0x8000u) << 16;
    const uint32_t small = bits_of(float_of(size + (113u << 23)) - 0x1p-14f);
    const uint32_t normal = size + (112u << 23);
    const uint32_t finite = size < (1u << 23) ? small : normal;
    return float_of((size >= (31u << 23) ? size | 0x7f800000u : finite) | sign);
}
TG_INLINE uint16_t f16_of_f32(float x) {
    _Float16 half = (_Float16)x;
    uint16_t bits;
    memcpy(&bits, &half, 2);
    return bits;
}

TG_INLINE int64_t weight_bytes(int64_t dtype) { return dtype == TG_F64 ? 8 : dtype == TG_F32 ? 4 : 2; }

/* Element i of an array of any weight dtype; `dtype` is a constant where speed matters. */
TG_INLINE double widened(const void *w, const int64_t dtype, int64_t i) {
    if (dtype == TG_F64) return ((const double *)w)[i];
    if (dtype == TG_F16) return f32_of_f16(((const uint16_t *)w)[i]);
    return dtype == TG_BF16 ? bf16_to_f32(((const uint16_t *)w)[i]) : ((const float *)w)[i];
}

TG_INLINE vf v_load_bf16(const uint16_t *p) {
    vh half;
    memcpy(&half, p, sizeof half);
    return (vf)(__builtin_convertvector(half, vu) << 16);
}

/* As bf16_of_f32. */
TG_INLINE void v_store_bf16(uint16_t *p, vf v) {
    const vu bits = (vu)v, rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16, none = (vu)(v != v);
    const vh half = __builtin_convertvector((rounded & ~none) | (none & 0x7fc0u), vh);
    memcpy(p, &half, sizeof half);
}

/* The sum of the lanes in f64. The conversion is a loop over memory because gcc 12 makes of that, unlike of
 * __builtin_convertvector on 16 lanes, whole conversions. */
TG_INLINE double v_sum_wide(vf v) {
    float narrow[VW];
    double lane[VW];
    v4d part[VW / 4], total;
    memcpy(narrow, &v, sizeof narrow);
    for (int l = 0; l < VW; l++) lane[l] = narrow[l];
    memcpy(part, lane, sizeof part);
    total = part[0];
    for (int i = 1; i < VW / 4; i++) total += part[i];
    return (total[0] + total[2]) + (total[1] + total[3]);
}

/* f32 to bfloat16, ties to even; NaN stays NaN. */
TG_INLINE uint16_t bf16_of_f32(float x) {
    uint32_t bits = bits_of(x);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (uint16_t)(x != x ? 0x7fc0u : rounded);
}

/* 2^f for |f| <= 0.5, relative error 2e-8 before rounding (Taylor series of e^(f ln 2), Horner's rule). */
TG_INLINE float exp2_fraction(float f) {
    float p = 1.5252733804059841e-05f;
    p = p * f + 1.5403530393381608e-04f;
    p = p * f + 1.3333558146428443e-03f;
    p = p * f + 9.6181291076284772e-03f;
    p = p * f + 5.5504108664821580e-02f;
    p = p * f + 2.4022650695910071e-01f;
    p = p * f + 6.9314718055994531e-01f;
    return p * f + 1.0f;
}

/* 2^n for -126 <= n <= 127. */
TG_INLINE float exp2_integer(int32_t n) { return float_of((uint32_t)(n + 127) << 23); }

/* e^x in f32, relative error below 2e-7 where the result is normal; a loop over it vectorises. Inf, NaN and underflow
 * as in exp. Cody and Waite, Software Manual for the Elementary Functions (1980): x = n ln 2 + r with ln 2 in two
 * pieces, the first of which has so few bits that n times it is exact. */
TG_INLINE float f32_exp(float x) {
    float a = x > 89.0f ? 89.0f : x; /* comparisons that a NaN fails keep it */
    a = a < -105.0f ? -105.0f : a;
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer, left in the low bits */
    float shifted = a * 1.4426950408889634f + shift;
    int32_t n = (int32_t)(bits_of(shifted) - 0x4b400000u);
    float whole = shifted - shift;
    float r = (a - whole * 0.693359375f) - whole * -2.12194440e-4f;
    float p = 1.0f / 5040.0f; /* Taylor to r^7: |r| <= 0.347, the rest is below 6e-9 */
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * (r * r) + r + 1.0f;
    int32_t half = n >> 1, rest = n - half; /* in two steps: 2^n alone may be neither finite nor normal */
    return p * exp2_integer(half) * exp2_integer(rest);
}

/* tanh |x| = t / (t + 2), t = e^(2|x|) - 1 = 2^n q + (2^n - 1), q = e^r - 1, 2|x| = n ln 2 + r as in f32_exp: near 0, n is 0 and q
 * has a relative error (its Taylor series to r^8: 3e-9). A NaN stays, whatever n is then. */
TG_INLINE float f32_tanh(float x) {
    float a = float_of(bits_of(x) & 0x7fffffffu);
    a = a > 10.0f ? 10.0f : a; /* where f32 has 1 */
    const float shift = 12582912.0f, shifted = a * 2.8853900817779268f + shift, whole = shifted - shift;
    const float r = (2.0f * a - whole * 0.693359375f) - whole * -2.12194440e-4f;
    float q = 1.0f / 40320.0f;
    q = q * r + 1.0f / 5040.0f;
    q = q * r + 1.0f / 720.0f;
    q = q * r + 1.0f / 120.0f;
    q = q * r + 1.0f / 24.0f;
    q = q * r + 1.0f / 6.0f;
    q = q * r + 0.5f;
    q = q * (r * r) + r;
    const float scale = float_of((bits_of(shifted) << 23) + 0x3f800000u); /* n is in the low bits */
    const float t = scale * q + (scale - 1.0f), y = t / (t + 2.0f);
    return float_of(bits_of(y) | (bits_of(x) & 0x80000000u));
}

/* The larger one: NaN wins; of two zeros +0 (the bits of -0 and +0 and'ed give +0, of equal numbers themselves). */
TG_INLINE float f32_max(float x, float y) {
    float m = x != y ? x : float_of(bits_of(x) & bits_of(y)); /* of a NaN every comparison but this one fails: x stays */
    m = x < y ? y : m;
    return y != y ? y : m;
}

#endif
