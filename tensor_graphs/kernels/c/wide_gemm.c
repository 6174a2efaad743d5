/* wide_gemm.c: the f64 register tile (see wide_gemm.h), compiled once for every wide kernel that multiplies matrices. */
#include "wide_gemm.h"

/* Steps of k that one pass over the tiles takes: that many of a panel (32 KB) and of a tile (28 KB) stay near. */
enum { DEPTH = 256, AHEAD = 16 /* as in gemm.c */ };

/* One tile; `rows`, `nv` and `layout` are constants wherever this is used. c = (c or 0) * keep + A P: `add` says whether c is
 * read, keep NULL stands for ones. One step of k per turn: with two or four, gcc 12 spills twelve accumulators. */
TG_INLINE void tile_product(const int rows, const int nv, const int layout, const double *a, int64_t stride, const double *panel,
                            int64_t k, double *c, int add, const double *keep) {
    const int width = nv * VD;
    vd acc[TILE_ROWS][2];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < nv; v++) acc[r][v] = (vd){0};
    /* Every third row has its own pointer: three rows are then one base and one scaled register. */
    const double *base[(TILE_ROWS + 2) / 3];
    for (int r = 0; r < (rows + 2) / 3; r++) base[r] = a + (layout == K_CONTIGUOUS ? 3 * r * stride : 3 * r);
    for (int64_t i = 0; i < k; i++, panel += width) {
        if (layout == ROWS_CONTIGUOUS)
            for (int r = 0; r < rows; r += 8) __builtin_prefetch(a + AHEAD * stride + r, 0, 3);
        vd lane[2];
        for (int v = 0; v < nv; v++) lane[v] = *(const vd *)(panel + v * VD);
        _Pragma("GCC unroll 16") for (int r = 0; r < rows; r++) {
            vd scalar = d_splat(layout == K_CONTIGUOUS ? base[r / 3][(r % 3) * stride] : a[r]);
            for (int v = 0; v < nv; v++) acc[r][v] += scalar * lane[v];
        }
        if (layout == K_CONTIGUOUS)
            for (int r = 0; r < (rows + 2) / 3; r++) base[r]++;
        else
            a += stride;
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < nv; v++) {
            vd *to = (vd *)(c + r * width + v * VD);
            vd old = add ? *to : (vd){0};
            if (keep) old *= d_load(keep + v * VD);
            *to = old + acc[r][v];
        }
}

/* Any number of rows, worked off as in gemm.c. */
#define ALL_ROWS(name, nv, layout)                                                                                             \
    static __attribute__((noinline)) void name(int64_t rows, const double *a, int64_t stride, const double *panel, int64_t k,  \
                                               double *c, int add, const double *keep) {                                       \
        const int64_t step = layout == K_CONTIGUOUS ? stride : 1, apart = nv * VD;                                             \
        int64_t r = 0;                                                                                                         \
        for (; layout == K_CONTIGUOUS && stride % 512 == 0 && r + NEAR_ROWS <= rows; r += NEAR_ROWS)                           \
            tile_product(NEAR_ROWS, nv, layout, a + r * step, stride, panel, k, c + r * apart, add, keep);                     \
        for (; r + TILE_ROWS <= rows; r += TILE_ROWS)                                                                          \
            tile_product(TILE_ROWS, nv, layout, a + r * step, stride, panel, k, c + r * apart, add, keep);                     \
        for (; r + 4 <= rows; r += 4)                                                                                          \
            tile_product(4, nv, layout, a + r * step, stride, panel, k, c + r * apart, add, keep);                             \
        for (; r + 2 <= rows; r += 2)                                                                                          \
            tile_product(2, nv, layout, a + r * step, stride, panel, k, c + r * apart, add, keep);                             \
        for (; r < rows; r++)                                                                                                  \
            tile_product(1, nv, layout, a + r * step, stride, panel, k, c + r * apart, add, keep);                             \
    }

ALL_ROWS(k_rows_1, 1, K_CONTIGUOUS)
ALL_ROWS(k_rows_2, 2, K_CONTIGUOUS)
ALL_ROWS(r_rows_1, 1, ROWS_CONTIGUOUS)
ALL_ROWS(r_rows_2, 2, ROWS_CONTIGUOUS)

void tg_wide_rows_product(int64_t rows, int nv, int layout, const double *a, int64_t stride, const double *panel, int64_t k,
                          double *c, const double *keep) {
    int64_t from = 0;
    do { /* at least once: of no products at all, c is 0 (or what is kept) */
        const int64_t steps = tg_min(DEPTH, k - from);
        if (layout == K_CONTIGUOUS) (nv == 1 ? k_rows_1 : k_rows_2)(rows, a, stride, panel, steps, c, keep || from, keep);
        else (nv == 1 ? r_rows_1 : r_rows_2)(rows, a, stride, panel, steps, c, keep || from, keep);
        a += layout == K_CONTIGUOUS ? steps : steps * stride;
        panel += steps * nv * VD;
        from += steps;
        keep = NULL;
    } while (from < k);
}
