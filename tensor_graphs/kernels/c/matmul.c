/* matmul.c: batched products of f32. */
#include "gemm.h"

#define ROWS_PRODUCT(...) tg_rows_product(__VA_ARGS__, NULL)
#include "batched.h"

/* out[b,m,n] = sum over k of a[b,m,k] * b[b,k,n]; strides in elements, 0 allowed in a and b (broadcast).
 * ptr: out, a, b.  ints: batch, m, n, k, out strides (b, m, n), a strides (b, m, k), b strides (b, k, n). */
TG_KERNEL(tg_matmul_f32) { (void)floats, run_matmul(ptr, ints); }
