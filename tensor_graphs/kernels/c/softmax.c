/* softmax.c: softmax of f32 rows. */
#include "rows.h"

/* out[n,d] = e^(x - max) / sum. A row with NaN, +inf or nothing but -inf is NaN.
 * ptr: out, x.  ints: n, d, group, far, near (of x). */
ROWS_KERNEL(tg_softmax, ints[0], 4 * ints[1], softmax_rows)
