/* product.h: the products of product.c, for kernels that are made of several of them. */
#ifndef TG_PRODUCT_H
#define TG_PRODUCT_H

#include "tg.h"

/* out[n,m] = x[n,k] . w[m,k]^T (+ bias[m]); all contiguous. They take scratch slots 0 and 1, on the pool's threads.
 * ptr: out, x, w, bias or NULL.  ints: n, m, k. */
TG_KERNEL(tg_linear_f32);
TG_KERNEL(tg_linear_bf16);

/* out[b,m,n] = sum over k of a[b,m,k] * b[b,k,n]; strides in elements, 0 allowed in a and b (broadcast).
 * ptr: out, a, b.  ints: batch, m, n, k, out strides (b, m, n), a strides (b, m, k), b strides (b, k, n). */
TG_KERNEL(tg_matmul_f32);

#endif
