/* wide_softmax.c: softmax of f64 rows; arguments as of softmax.c. */
#include "wide.h"

#include "rows.h"

ROWS_KERNEL(tg_softmax_f64, ints[0], 8 * ints[1], softmax_rows)
