/* wide_rms_norm.c: rms_norm of f64 rows; arguments as of rms_norm.c. */
#include "wide.h"

#include "rows.h"

ROWS_KERNEL(tg_rms_norm_f64, ints[0], 2 * ints[1], rms_rows)
