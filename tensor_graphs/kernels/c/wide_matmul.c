/* wide_matmul.c: batched products of f64. */
#include "wide_gemm.h"

#define ROWS_PRODUCT tg_wide_rows_product
#include "batched.h"

/* As tg_matmul_f32. */
TG_KERNEL(tg_matmul_f64) { (void)floats, run_matmul(ptr, ints); }
