/* attention.c: attention of f32, over keys in a row or in pages of a pool. */
#include "attention.h"

#include "gemm.h"

#define ROWS_PRODUCT(...) tg_rows_product(__VA_ARGS__, NULL)
#include "attend.h"
#include "turned.h"

#include "paged_attention.h"

TG_KERNEL(tg_attention) { run_attention(ptr, ints, floats); }

/* out[n,hq,d] from q[n,hq,d] and pools k[rows,hkv,d], v[rows,hkv,d]; all contiguous. Key j of query i is row pages[i][j / page] * page +
 * j % page of the pools, zeros if that is none; it is visible if j <= positions[i] and (window = 0 or positions[i] - j < window). A query
 * that sees nothing gives zeros. The pools are of f32 or bf16; q and out too, and then both are bf16. It takes scratch slots 0 to 2.
 * ptr: out, q, k, v, pages (i32 [n,width]), positions (i32 [n]), sinks (f32 [hq]: scores without a value) or NULL.  ints: n, hq, hkv, d, width, page, rows, window, dtype of k and v,
 * dtype of q and out.  floats: scale, softcap (0: none). */
TG_KERNEL(tg_paged_attention) { run_paged(ptr, ints, floats); }
