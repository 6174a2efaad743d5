/* wide_attention.c: attention of f64. */
#include "wide_gemm.h"

#define ROWS_PRODUCT tg_wide_rows_product
#include "attend.h"

/* As tg_attention, all f64. */
TG_KERNEL(tg_attention_f64) { run_attention(ptr, ints, floats); }
