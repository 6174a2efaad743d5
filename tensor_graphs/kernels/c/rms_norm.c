/* rms_norm.c: rms_norm of f32 rows. */
#include "rows.h"

/* out[n,d] = x * rsqrt(mean(x^2) + eps) * (offset + w); w NULL: without the last factor.
 * ptr: out, x, w or NULL.  ints: n, d, w_dtype, group, far, near (of x: row_at).  floats: eps, offset. */
ROWS_KERNEL(tg_rms_norm, ints[0], ints[1], rms_rows)
