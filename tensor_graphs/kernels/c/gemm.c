/* gemm.c: the register tile (see gemm.h), compiled once for every kernel that multiplies matrices. */
#include "gemm.h"

/* One tile; `rows`, `nv` and `layout` are constants wherever this is used. */
TG_INLINE void tile_product(const int rows, const int nv, const int layout, const float *a, int64_t stride,
                            const float *panel, int64_t k, float *c, int add, const char *next) {
    vf acc[TILE_ROWS][2];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < nv; v++) acc[r][v] = add ? v_load(c + (r * nv + v) * VW) : (vf){0};
    /* Every third row has its own pointer: rows r - 1, r, r + 1 are then one base and one scaled register. */
    const float *base[(TILE_ROWS + 2) / 3];
    for (int r = 0; r < (rows + 2) / 3; r++) base[r] = a + (layout == K_CONTIGUOUS ? 3 * r * stride : 3 * r);
#define STEP(kk)                                                                                            \
    {                                                                                                       \
        vf lane[2];                                                                                         \
        for (int v = 0; v < nv; v++) lane[v] = *(const vf *)(panel + ((kk) * nv + v) * VW);                 \
        _Pragma("GCC unroll 16") for (int r = 0; r < rows; r++) {                                           \
            vf scalar = v_splat(layout == K_CONTIGUOUS ? base[r / 3][(r % 3) * stride + (kk)]               \
                                                       : a[(kk) * stride + r]);                             \
            for (int v = 0; v < nv; v++) acc[r][v] += scalar * lane[v];                                     \
        }                                                                                                   \
    }
    int64_t i = 0;
    for (; i + 4 <= k; i += 4) {
        if (next) {
            __builtin_prefetch(next, 0, 2);
            next += 64;
        }
        STEP(0) STEP(1) STEP(2) STEP(3)
        panel += 4 * nv * VW;
        if (layout == K_CONTIGUOUS)
            for (int r = 0; r < (rows + 2) / 3; r++) base[r] += 4;
        else
            a += 4 * stride;
    }
    for (; i < k; i++) {
        STEP(0)
        panel += nv * VW;
        if (layout == K_CONTIGUOUS)
            for (int r = 0; r < (rows + 2) / 3; r++) base[r] += 1;
        else
            a += stride;
    }
#undef STEP
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < nv; v++) v_store(c + (r * nv + v) * VW, acc[r][v]);
}

/* Any number of rows, worked off in tiles of TILE_ROWS, 4 and 1 rows. Not inlined: twelve tiles, compiled once. */
#define ALL_ROWS(name, nv, layout)                                                                                  \
    static __attribute__((noinline)) void name(int64_t rows, const float *a, int64_t stride, const float *panel,    \
                                               int64_t k, float *c, int add, const char *next) {                    \
        const int64_t row_step = layout == K_CONTIGUOUS ? stride : 1;                                               \
        int64_t r = 0;                                                                                              \
        for (; r + TILE_ROWS <= rows; r += TILE_ROWS) {                                                             \
            tile_product(TILE_ROWS, nv, layout, a + r * row_step, stride, panel, k, c + r * nv * VW, add, next);    \
            if (next) next += 16 * k;                                                                               \
        }                                                                                                           \
        for (; r + 4 <= rows; r += 4)                                                                               \
            tile_product(4, nv, layout, a + r * row_step, stride, panel, k, c + r * nv * VW, add, NULL);            \
        for (; r < rows; r++)                                                                                       \
            tile_product(1, nv, layout, a + r * row_step, stride, panel, k, c + r * nv * VW, add, NULL);            \
    }

ALL_ROWS(k_rows_1, 1, K_CONTIGUOUS)
ALL_ROWS(k_rows_2, 2, K_CONTIGUOUS)
ALL_ROWS(r_rows_1, 1, ROWS_CONTIGUOUS)
ALL_ROWS(r_rows_2, 2, ROWS_CONTIGUOUS)

void tg_rows_product(int64_t rows, int nv, int layout, const float *a, int64_t stride, const float *panel, int64_t k,
                     float *c, int add, const char *next) {
    if (layout == K_CONTIGUOUS) (nv == 1 ? k_rows_1 : k_rows_2)(rows, a, stride, panel, k, c, add, next);
    else (nv == 1 ? r_rows_1 : r_rows_2)(rows, a, stride, panel, k, c, add, next);
}
