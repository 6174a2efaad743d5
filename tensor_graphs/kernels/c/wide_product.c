/* wide_product.c: products of f64, by weights of any width; arguments as in product.h. */
#include "wide_gemm.h"

#define STREAM_LIMIT 6 /* of 4, 6 and 8 the best at k = 640 and 2048 */
#define ROWS_PRODUCT(rows, nv, layout, a, apart, panel, k, c, keep, next) \
    ((void)(next), tg_wide_rows_product(rows, nv, layout, a, apart, panel, k, c, keep))
#include "multiply.h"

TG_KERNEL(tg_matmul_f64) { (void)floats, matmul(ptr, ints, TG_F64); }
TG_KERNEL(tg_conv_f64) { (void)floats, convolution(ptr, ints); }

/* ptr: out, x, w, bias or NULL.  ints: n, m, k, w_dtype, bias_dtype. */
TG_KERNEL(tg_linear_f64) {
    (void)floats, linear(ptr, ints[0], ints[1], ints[2], TG_F64, TG_F64, ints[3], ints[4]);
}
