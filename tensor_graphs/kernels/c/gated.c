/* gated.c: gated.h in f32. */
#include "activations.h"
#include "gated.h"

GATED(tg_gelu_tanh_mul, float, 8, gelu_tanh)
GATED(tg_gelu_erf_mul, float, 8, gelu_erf)
GATED(tg_silu_mul, float, 8, silu)
