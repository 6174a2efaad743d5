/* wide_layer_norm.c: layer_norm of f64 rows; arguments as of layer_norm.c. */
#include "wide.h"

#include "rows.h"

ROWS_KERNEL(tg_layer_norm_f64, ints[0], 2 * ints[1], layer_rows)
