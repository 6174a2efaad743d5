/* linear.h: the products of linear.c, for kernels that are made of several of them. */
#ifndef TG_LINEAR_H
#define TG_LINEAR_H

#include "tg.h"

/* out[n,m] = x[n,k] . w[m,k]^T (+ bias[m]); all contiguous. They take scratch slots 0 and 1, on the pool's threads.
 * ptr: out, x, w, bias or NULL.  ints: n, m, k. */
TG_KERNEL(tg_linear_f32);
TG_KERNEL(tg_linear_bf16);

#endif
