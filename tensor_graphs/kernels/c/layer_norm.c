/* layer_norm.c: layer_norm of f32 rows. */
#include "rows.h"

/* out[n,d] = (x - mean(x)) * rsqrt(var(x) + eps) * w + b.
 * ptr: out, x, w or NULL, b or NULL.  ints: n, d, w_dtype, b_dtype, group, far, near (of x).  floats: eps. */
ROWS_KERNEL(tg_layer_norm, ints[0], ints[1], layer_rows)
