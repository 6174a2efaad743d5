/* batched.h: the body of matmul.c and wide_matmul.c: batched out[b,m,n] = a[b,m,k] . b[b,k,n] with a stride for every axis of every
 * operand. ROWS_PRODUCT: the register tile. */
#include "real.h"

typedef struct matmul {
    real *out;
    const real *a, *b;
    int64_t batch, m, n, k;
    int64_t ob, om, on, ab, am, ak, bb, bk, bn; /* strides in elements */
    int64_t panels, chunks;                     /* column panels, and row chunks per panel */
} matmul;

static void one_by_one(const matmul *p, real *out, const real *a, const real *b, int64_t rows, int64_t cols) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) {
            double sum = 0;
            for (int64_t l = 0; l < p->k; l++) sum += (double)a[i * p->am + l * p->ak] * b[l * p->bk + j * p->bn];
            out[i * p->om + j * p->on] = (real)sum;
        }
}

/* out[rows, cols] with cols <= nv * VR: packs b once, then walks the rows in tiles. */
TG_INLINE void column_panel(const matmul *p, const int nv, real *out, const real *a, const real *b, int64_t rows,
                            int64_t cols) {
    const int64_t k = p->k, lanes = nv * VR, stride = tg_ceil(k, LINE) * LINE + LINE;
    real *panel = tg_scratch(1, (size_t)(tg_max_i(k, 1) * lanes + TILE_ROWS * stride) * sizeof(real));
    if (!panel) {
        one_by_one(p, out, a, b, rows, cols);
        return;
    }
    real *copied = panel + k * lanes;
    for (int64_t i = 0; i < k; i++) {
        const real *from = b + i * p->bk;
        real *to = panel + i * lanes;
        if (p->bn == 1)
            for (int64_t l = 0; l < cols; l++) to[l] = from[l];
        else
            for (int64_t l = 0; l < cols; l++) to[l] = from[l * p->bn];
        for (int64_t l = cols; l < lanes; l++) to[l] = 0;
    }
    _Alignas(64) real c[TILE_ROWS * REAL_PANEL];
    for (int64_t i = 0; i < rows; i += TILE_ROWS) {
        const int64_t height = tg_min(TILE_ROWS, rows - i);
        const real *tile = a + i * p->am;
        if (p->am == 1) ROWS_PRODUCT(height, nv, ROWS_CONTIGUOUS, tile, p->ak, panel, k, c, NULL);
        else {
            int64_t apart = p->am;
            if (p->ak != 1 || apart % (64 * LINE) == 0) { /* rows 4096 bytes apart would share one set of the L1 cache */
                for (int64_t r = 0; r < height; r++)
                    for (int64_t l = 0; l < k; l++) copied[r * stride + l] = tile[r * p->am + l * p->ak];
                tile = copied, apart = stride;
            }
            ROWS_PRODUCT(height, nv, K_CONTIGUOUS, tile, apart, panel, k, c, NULL);
        }
        for (int64_t r = 0; r < height; r++) {
            real *to = out + (i + r) * p->om;
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
        int64_t row = chunk * rows, col = panel * REAL_PANEL;
        rows = tg_min(rows, p->m - row);
        if (rows <= 0) continue;
        int64_t cols = tg_min(REAL_PANEL, p->n - col);
        real *out = p->out + batch * p->ob + row * p->om + col * p->on;
        const real *a = p->a + batch * p->ab + row * p->am, *b = p->b + batch * p->bb + col * p->bn;
        if (cols <= VR) column_panel(p, 1, out, a, b, rows, cols);
        else column_panel(p, 2, out, a, b, rows, cols);
    }
}

static void run_matmul(void *const *ptr, const int64_t *ints) {
    matmul p = {.out = ptr[0], .a = ptr[1], .b = ptr[2], .batch = ints[0], .m = ints[1], .n = ints[2], .k = ints[3],
                .ob = ints[4], .om = ints[5], .on = ints[6], .ab = ints[7], .am = ints[8], .ak = ints[9],
                .bb = ints[10], .bk = ints[11], .bn = ints[12]};
    if (p.batch <= 0 || p.m <= 0 || p.n <= 0) return;
    p.panels = tg_ceil(p.n, REAL_PANEL);
    p.chunks = 1;
    int64_t tasks = p.batch * p.panels, wanted = 2 * tg_threads();
    if (tasks < wanted) p.chunks = tg_max_i(1, tg_min(tg_ceil(wanted, tasks), p.m / (4 * TILE_ROWS)));
    int64_t task_work = tg_min(p.n, REAL_PANEL) * tg_ceil(p.m, p.chunks) * tg_max_i(p.k, 1);
    tg_parallel(matmul_part, &p, tg_parts(tasks * p.chunks, tg_ceil(100000, task_work)));
}
