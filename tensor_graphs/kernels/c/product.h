/* product.h: the products of product.c, for kernels that are made of several of them. */
#ifndef TG_PRODUCT_H
#define TG_PRODUCT_H

#include "tg.h"

/* out[n,m] = x[n,k] . w[m,k]^T (+ bias[m]); all contiguous. They take scratch slots 0 and 1, on the pool's threads.
 * ptr: out, x, w, bias or NULL.  ints: n, m, k; of _narrow, whose x and w are of bfloat16, also the dtypes of bias and out (bf16 or f32). */
TG_KERNEL(tg_linear_f32);
TG_KERNEL(tg_linear_bf16);
TG_KERNEL(tg_linear_narrow);

/* Turns the elements [from, from + count), both multiples of DECODED, of `lanes` rows of weights of k elements a row, from `row` on, into
 * floats to[count][lanes]; row and lanes are multiples of a vector's lanes. */
typedef void (*tg_decode)(const char *weights, int64_t k, int64_t row, int64_t lanes, int64_t from, int64_t count, float *to);
enum { DECODED = 32 };

/* out[n,m] = x[n,k] . w[m,k]^T (+ bias[m]) of f32 for many rows of x; w: what `decode` reads.
 * ptr: out, x, w, bias or NULL.  ints: n, m, k. */
TG_API void tg_linear_decoded(void *const *ptr, const int64_t *ints, tg_decode decode);

/* out[b,m,n] = sum over k of a[b,m,k] * b[b,k,n]; strides in elements, 0 allowed in a and b (broadcast).
 * ptr: out, a, b.  ints: batch, m, n, k, out strides (b, m, n), a strides (b, m, k), b strides (b, k, n). */
TG_KERNEL(tg_matmul_f32);
TG_KERNEL(tg_matmul_bf16);
TG_KERNEL(tg_matmul_f16);

/* out[n, groups * outputs, places] = bias + sums over c and k of x[n, groups * channels, in] * w[groups * outputs, channels, size],
 * x at stride * place + dilation * k - before, 0 outside.
 * ptr: out, x, w, bias (or NULL).  ints: n, groups, channels, outputs (of a group), then for each of three axes: in, places, size,
 * stride, before, dilation; of fewer axes the first ones are 1, 1, 1, 1, 0, 1; then the dtypes of x and out, of w and of bias: f32, bf16
 * or f16. tg_conv_f64: x and out of f64. */
TG_KERNEL(tg_conv_f32);

#endif
