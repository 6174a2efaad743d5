/* wide_matmul.c: matmul.c in f64: batched out[b,m,n] = a[b,m,k] . b[b,k,n] with a stride for every axis of every operand. */
#include "wide_gemm.h"

typedef struct matmul {
    double *out;
    const double *a, *b;
    int64_t batch, m, n, k;
    int64_t ob, om, on, ab, am, ak, bb, bk, bn; /* strides in elements */
    int64_t panels, chunks;                     /* column panels, and row chunks per panel */
} matmul;

static void one_by_one(const matmul *p, double *out, const double *a, const double *b, int64_t rows, int64_t cols) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) {
            double sum = 0;
            for (int64_t l = 0; l < p->k; l++) sum += a[i * p->am + l * p->ak] * b[l * p->bk + j * p->bn];
            out[i * p->om + j * p->on] = sum;
        }
}

/* out[rows, cols] with cols <= nv * VD: packs b once, then walks the rows in tiles. */
TG_INLINE void column_panel(const matmul *p, const int nv, double *out, const double *a, const double *b, int64_t rows,
                            int64_t cols) {
    const int64_t k = p->k, lanes = nv * VD, stride = (k + 7) / 8 * 8 + 8;
    double *panel = tg_scratch(1, (size_t)(tg_max_i(k, 1) * lanes + TILE_ROWS * stride) * 8);
    if (!panel) {
        one_by_one(p, out, a, b, rows, cols);
        return;
    }
    double *copied = panel + k * lanes;
    for (int64_t i = 0; i < k; i++) {
        const double *from = b + i * p->bk;
        double *to = panel + i * lanes;
        if (p->bn == 1)
            for (int64_t l = 0; l < cols; l++) to[l] = from[l];
        else
            for (int64_t l = 0; l < cols; l++) to[l] = from[l * p->bn];
        for (int64_t l = cols; l < lanes; l++) to[l] = 0;
    }
    _Alignas(64) double c[TILE_ROWS * WIDE_PANEL];
    for (int64_t i = 0; i < rows; i += TILE_ROWS) {
        const int64_t height = tg_min(TILE_ROWS, rows - i);
        const double *tile = a + i * p->am;
        if (p->am == 1) tg_wide_rows_product(height, nv, ROWS_CONTIGUOUS, tile, p->ak, panel, k, c, NULL);
        else {
            int64_t apart = p->am;
            if (p->ak != 1 || apart % 512 == 0) { /* rows 4096 bytes apart would share one set of the L1 cache */
                for (int64_t r = 0; r < height; r++)
                    for (int64_t l = 0; l < k; l++) copied[r * stride + l] = tile[r * p->am + l * p->ak];
                tile = copied, apart = stride;
            }
            tg_wide_rows_product(height, nv, K_CONTIGUOUS, tile, apart, panel, k, c, NULL);
        }
        for (int64_t r = 0; r < height; r++) {
            double *to = out + (i + r) * p->om;
            if (p->on == 1)
                for (int64_t l = 0; l < cols; l++) to[l] = c[r * lanes + l];
            else
                for (int64_t l = 0; l < cols; l++) to[l * p->on] = c[r * lanes + l];
        }
    }
}

static void matmul_part(void *ctx, int part, int parts) {
    const matmul *p = ctx;
    int64_t from, to, per_batch = p->panels * p->chunks;
    tg_range(p->batch * per_batch, 1, part, parts, &from, &to);
    for (int64_t task = from; task < to; task++) {
        int64_t batch = task / per_batch, panel = task % per_batch / p->chunks, chunk = task % p->chunks;
        int64_t rows = tg_ceil(tg_ceil(p->m, TILE_ROWS), p->chunks) * TILE_ROWS;
        int64_t row = chunk * rows, col = panel * WIDE_PANEL;
        rows = tg_min(rows, p->m - row);
        if (rows <= 0) continue;
        int64_t cols = tg_min(WIDE_PANEL, p->n - col);
        double *out = p->out + batch * p->ob + row * p->om + col * p->on;
        const double *a = p->a + batch * p->ab + row * p->am, *b = p->b + batch * p->bb + col * p->bn;
        if (cols <= VD) column_panel(p, 1, out, a, b, rows, cols);
        else column_panel(p, 2, out, a, b, rows, cols);
    }
}

/* out[b,m,n] = sum over k of a[b,m,k] * b[b,k,n]; strides in elements, 0 allowed in a and b (broadcast).
 * ptr: out, a, b.  ints: batch, m, n, k, out strides (b, m, n), a strides (b, m, k), b strides (b, k, n). */
TG_KERNEL(tg_matmul_f64) {
    (void)floats;
    matmul p = {.out = ptr[0], .a = ptr[1], .b = ptr[2], .batch = ints[0], .m = ints[1], .n = ints[2], .k = ints[3],
                .ob = ints[4], .om = ints[5], .on = ints[6], .ab = ints[7], .am = ints[8], .ak = ints[9],
                .bb = ints[10], .bk = ints[11], .bn = ints[12]};
    if (p.batch <= 0 || p.m <= 0 || p.n <= 0) return;
    p.panels = tg_ceil(p.n, WIDE_PANEL);
    p.chunks = 1;
    int64_t tasks = p.batch * p.panels, wanted = 2 * tg_threads();
    if (tasks < wanted) p.chunks = tg_max_i(1, tg_min(tg_ceil(wanted, tasks), p.m / (4 * TILE_ROWS)));
    int64_t task_work = tg_min(p.n, WIDE_PANEL) * tg_ceil(p.m, p.chunks) * tg_max_i(p.k, 1);
    tg_parallel(matmul_part, &p, tg_parts(tasks * p.chunks, tg_ceil(100000, task_work)));
}
