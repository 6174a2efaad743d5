/* wide_activations.h: activations of one f64 number, for the loops over many. */
#ifndef TG_WIDE_ACTIVATIONS_H
#define TG_WIDE_ACTIVATIONS_H

#include "wide.h"

/* x times the logistic function of t. */
TG_INLINE double sigmoid_times(double x, double t) {
    double e = f64_exp(t < 0 ? t : -t);
    return x * ((t < 0 ? e : 1.0) / (1.0 + e));
}

/* gelu(x), tanh form = x * sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3) (Hendrycks and Gimpel, 2016). */
TG_INLINE double gelu_tanh(double x) { return sigmoid_times(x, 2.0 * 0.79788456080286536 * (x + 0.044715 * (x * x * x))); }

TG_INLINE double silu(double x) { return sigmoid_times(x, x); }

/* gelu(x) = x / 2 erfc(-x / sqrt 2). With z = |x| / sqrt 2: below 3/4, erf z / z is a polynomial in z^2; beyond,
 * erfc z = e^(-z^2) / (z + 3) times a polynomial in A - B / (z + 3), up to 28, where even f64 has 0. The Chebyshev fits are those
 * of the definition (language/composites/elementary.py; its tests derive them again). */
TG_INLINE double gelu_erf(double x) {
    static const double near[] = {1.1283791670955126, -0.37612638903183754, 0.11283791670955087, -0.02686617064511852,
                                  0.005223977625223246, -0.0008548327001223344, 0.00012055331549810692,
                                  -1.4925589533723744e-05, 1.6460386405915453e-06, -1.633327165692877e-07,
                                  1.4414195873086809e-08, -9.503863762341979e-10};
    static const double tail[] = {0.9887787838101395, -0.5421553621425853, 0.24796997284786096, -0.09180528726963327,
                                  0.025825099108817712, -0.004632519284056685, 9.596353038335853e-05,
                                  0.00021179118385804624, -4.4819743031989275e-05, -6.41283725170128e-06,
                                  3.8048084945094824e-06, 1.257830857609925e-07, -3.036761147270431e-07,
                                  5.932259299686457e-10, 2.6314463846724166e-08, 2.3877337825902987e-10,
                                  -2.466993991955349e-09, -1.4684013817055342e-10, 2.2540462951804907e-10,
                                  3.0051692948763907e-11, -1.4456006009660346e-11, -2.952952068695705e-12};
    double z = (x < 0 ? -x : x) * 0.70710678118654752;
    z = z > 28.0 ? 28.0 : z;
    double square = z * z, inverse = 1.0 / (z + 3.0), s = 1.2752293577981651 - inverse * 8.532110091743119;
    double p = near[11], q = tail[21];
    for (int i = 10; i >= 0; i--) p = p * square + near[i];
    for (int i = 20; i >= 0; i--) q = q * s + tail[i];
    double far = f64_exp(-square) * q * inverse;       /* erfc z */
    double below = z < 0.75 ? 1.0 - z * p : far;       /* erfc of the positive argument: of the negative one it is 2 - that */
    return 0.5 * x * (x < 0 ? below : 2.0 - below);
}

#endif
