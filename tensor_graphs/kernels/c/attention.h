/* attention.h: the attention of attention.c, for kernels that are made of it. */
#ifndef TG_ATTENTION_H
#define TG_ATTENTION_H

#include "tg.h"

/* out[n,hq,d] from q[n,hq,d], k[s,hkv,d], v[s,hkv,d]; head h reads key/value head h / (hq / hkv). Query i has position
 * start + i, key j position j. Key j is visible to position p if (not causal or j <= p) and (window = 0 or p - j < window)
 * and (no mask or mask[i,j]). softcap c > 0: scores become c tanh(score / c). A query that sees nothing gives zeros.
 * It takes scratch slots 0 and 1, on the pool's threads.
 * ptr: out, q, k, v, mask (u8 [n,s], 0 = hidden) or NULL.
 * ints: n, s, hq, hkv, d, causal, window, start, k_stride, v_stride (elements from one key to the next), q_stride, q_head (from
 * one query, and from one head of it, to the next; q_head 0: one behind the other), k_head, v_head (from one head of a key to the
 * next; 0: one behind the other).
 * floats: scale, softcap (0: none). */
TG_KERNEL(tg_attention);

#endif
