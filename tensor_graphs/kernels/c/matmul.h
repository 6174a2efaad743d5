/* matmul.h: the product of matmul.c, for kernels that are made of several of them. */
#ifndef TG_MATMUL_H
#define TG_MATMUL_H

#include "tg.h"

/* out[b,m,n] = sum over k of a[b,m,k] * b[b,k,n]; strides in elements, 0 allowed in a and b (broadcast).
 * ptr: out, a, b.  ints: batch, m, n, k, out strides (b, m, n), a strides (b, m, k), b strides (b, k, n). */
TG_KERNEL(tg_matmul_f32);

#endif
