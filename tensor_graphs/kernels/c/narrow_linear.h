/* narrow_linear.h: the product of narrow_linear.c, for kernels that are made of several of them. */
#ifndef TG_NARROW_LINEAR_H
#define TG_NARROW_LINEAR_H

#include "tg.h"

/* out[n,m] = x[n,k] . w[m,k]^T + bias[m], x and w of bfloat16, out of bfloat16 or f32. It takes scratch slots 0 to 2, on the pool's
 * threads.
 * ptr: out, x, w, bias or NULL.  ints: n, m, k, dtype of bias, dtype of out; all contiguous. */
TG_KERNEL(tg_linear_narrow);

#endif
