/* activations.h: activations of one f32 number, for the loops over many. */
#ifndef TG_ACTIVATIONS_H
#define TG_ACTIVATIONS_H

#include "vec.h"

/* x times the logistic function of (t ln 2): x / (1 + 2^-|t|), times 2^-|t| when t < 0. */
TG_INLINE float sigmoid_times(float x, double t) {
    scaled e = exp2_scaled(t < 0 ? t : -t);
    float below = x * e.fraction * e.s1 * e.s2; /* x first: x * 2^t may be a normal number where 2^t is not */
    return (t < 0 ? below : x) / (1.0f + e.fraction * e.s1 * e.s2);
}

static const double LOG2E = 1.4426950408889634;

/* gelu(x), tanh form = x * sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3) (Hendrycks and Gimpel, 2016). */
TG_INLINE float gelu_tanh(float x) {
    double d = x;
    return sigmoid_times(x, d * (2.0 * 0.79788456080286536 * 1.4426950408889634) * (1.0 + 0.044715 * d * d));
}

TG_INLINE float silu(float x) { return sigmoid_times(x, (double)x * LOG2E); }
TG_INLINE float sigmoid(float x) { return sigmoid_times(1.0f, (double)x * LOG2E); }

/* gelu(x) = x * Phi(x). Phi(-a) = erfc(a / sqrt 2) / 2 = e^(-a^2 / 2) t P(t) / 2 with t = 1 / (1 + 0.4 a / sqrt 2). */
TG_INLINE float gelu_erf(float x) {
    double a = x < 0 ? -(double)x : (double)x;
    double t = 1.0 / (1.0 + 0.28284271247461901 * a);
    scaled e = exp2_scaled(a * a * (-0.5 * 1.4426950408889634));
    float front = (float)(0.5 * t * erfcx_series(t)) * e.fraction;
    float below = x * front * e.s1 * e.s2, above = x * (1.0f - front * e.s1 * e.s2);
    return x < 0 ? below : above;
}

#endif
