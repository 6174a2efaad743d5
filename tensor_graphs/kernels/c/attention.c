/* attention.c: attention of f32. */
#include "attention.h"

#include "gemm.h"

#define ROWS_PRODUCT(...) tg_rows_product(__VA_ARGS__, NULL)
#include "attend.h"

TG_KERNEL(tg_attention) { run_attention(ptr, ints, floats); }
