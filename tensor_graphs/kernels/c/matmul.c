/* matmul.c: batched products of f32. */
#include "matmul.h"

#include "gemm.h"

#define ROWS_PRODUCT(...) tg_rows_product(__VA_ARGS__, NULL)
#include "batched.h"

TG_KERNEL(tg_matmul_f32) { (void)floats, run_matmul(ptr, ints); }
