/* wide_norms.c: rms_norm, layer_norm and softmax of f64 rows; arguments as of norms.c. */
#include "wide.h"

#include "rows.h"

ROWS_KERNEL(tg_rms_norm_f64, ints[0], 2 * ints[1], rms_rows)
ROWS_KERNEL(tg_layer_norm_f64, ints[0], 2 * ints[1], layer_rows)
ROWS_KERNEL(tg_softmax_f64, ints[0], 8 * ints[1], softmax_rows)
