/* wide_gated.c: gated.h in f64. */
#include "gated.h"
#include "wide_activations.h"

GATED(tg_gelu_tanh_mul_f64, double, 16, gelu_tanh)
GATED(tg_gelu_erf_mul_f64, double, 16, gelu_erf)
GATED(tg_silu_mul_f64, double, 16, silu)
