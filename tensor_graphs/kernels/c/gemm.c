/* gemm.c: the register tile (see gemm.h), compiled once for every kernel that multiplies matrices. */
#include "gemm.h"

/* An f32 sum of k products is as wrong as it is long, so it is cut: BLOCK products add up in registers, the blocks of a CHUNK
 * in f32, the chunks in f64. The error of a sum at k = 640 and 2048, against the rms of a row: 1.2e-7 (largest of 400000: 8e-7),
 * where one f32 sum had 4.5e-7 and 8e-7 (5e-6, 8e-6). Costs 5 to 9 % of a large product; blocks of 16 would cost 15 % and give
 * 1.0e-7. The accumulators have to stay in registers: look at the loop again when this changes (with gcc 12, sums that
 * begin at zero in memory, a block as a function of its own and a fold ahead of the block all spilled, 10 to 30 % slower; four steps of
 * k per turn did a little, 4 %). */
enum { BLOCK = 32, CHUNK = 256 };

enum { AHEAD = 16 }; /* steps of k ahead of which lines that lie apart are asked for: no processor does that by itself */

/* One tile; `rows`, `nv` and `layout` are constants wherever this is used. */
TG_INLINE void tile_product(const int rows, const int nv, const int layout, const float *a, int64_t stride,
                            const float *panel, int64_t k, float *c, const float *keep, const char *next) {
    const int width = nv * VW, count = rows * width;
    _Alignas(64) float sum[TILE_ROWS * PANEL];
    _Alignas(64) double total[TILE_ROWS * PANEL]; /* first written at from == CHUNK; gcc -Wall misses that, zeros cost 3 % */
    /* Every third row has its own pointer: rows r - 1, r, r + 1 are then one base and one scaled register. */
    const float *base[(TILE_ROWS + 2) / 3];
    for (int r = 0; r < (rows + 2) / 3; r++) base[r] = a + (layout == K_CONTIGUOUS ? 3 * r * stride : 3 * r);
    if (k <= 0) memset(sum, 0, sizeof sum);
    for (int64_t from = 0; from < k; from += BLOCK) {
        const int64_t steps = tg_min(BLOCK, k - from);
        vf acc[TILE_ROWS][2];
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < nv; v++) acc[r][v] = (vf){0};
        if (next)
            for (int64_t line = 0; line < steps / 4; line++, next += 64) __builtin_prefetch(next, 0, 2);
        for (int64_t i = 0; i < steps; i++, panel += width) {
            if (layout == ROWS_CONTIGUOUS) __builtin_prefetch(a + AHEAD * stride, 0, 3), __builtin_prefetch(a + AHEAD * stride + rows - 1, 0, 3);
            vf lane[2];
            for (int v = 0; v < nv; v++) lane[v] = *(const vf *)(panel + v * VW);
            _Pragma("GCC unroll 16") for (int r = 0; r < rows; r++) {
                const vf scalar = v_splat(layout == K_CONTIGUOUS ? base[r / 3][(r % 3) * stride] : a[r]);
                for (int v = 0; v < nv; v++) acc[r][v] += scalar * lane[v];
            }
            if (layout == K_CONTIGUOUS)
                for (int r = 0; r < (rows + 2) / 3; r++) base[r]++;
            else
                a += stride;
        }
        if (from % CHUNK) {
            for (int r = 0; r < rows; r++)
                for (int v = 0; v < nv; v++) *(vf *)(sum + r * width + v * VW) += acc[r][v];
            continue;
        }
        if (from == CHUNK)
            for (int e = 0; e < count; e++) total[e] = sum[e];
        else if (from)
            for (int e = 0; e < count; e++) total[e] += sum[e];
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < nv; v++) *(vf *)(sum + r * width + v * VW) = acc[r][v];
    }
    if (k > CHUNK)
        for (int e = 0; e < count; e++) sum[e] = (float)(total[e] + sum[e]);
    for (int r = 0; r < rows; r++)
        for (int l = 0; l < width; l++)
            c[r * width + l] = keep ? c[r * width + l] * keep[l] + sum[r * width + l] : sum[r * width + l];
}

/* Any number of rows, worked off in tiles of TILE_ROWS, 4, 2 and 1 rows. Rows that share a set of the L1 cache go by tiles of NEAR_ROWS:
 * copies of such rows cost 2 to 30 % of a product by 128 to 16 lanes, tiles of half the height nothing. Not inlined: fourteen tiles,
 * compiled once. */
#define ALL_ROWS(name, nv, layout)                                                                                              \
    static __attribute__((noinline)) void name(int64_t rows, const float *a, int64_t stride, const float *panel, int64_t k,     \
                                               float *c, const float *keep, const char *next) {                                 \
        const int64_t row_step = layout == K_CONTIGUOUS ? stride : 1;                                                           \
        int64_t r = 0;                                                                                                          \
        if (layout == K_CONTIGUOUS && stride % 1024 == 0)                                                                       \
            for (; r + NEAR_ROWS <= rows; r += NEAR_ROWS) {                                                                     \
                tile_product(NEAR_ROWS, nv, layout, a + r * row_step, stride, panel, k, c + r * nv * VW, keep, next);           \
                if (next) next += 16 * k * NEAR_ROWS / TILE_ROWS;                                                               \
            }                                                                                                                   \
        for (; r + TILE_ROWS <= rows; r += TILE_ROWS) {                                                                         \
            tile_product(TILE_ROWS, nv, layout, a + r * row_step, stride, panel, k, c + r * nv * VW, keep, next);               \
            if (next) next += 16 * k;                                                                                           \
        }                                                                                                                       \
        for (; r + 4 <= rows; r += 4)                                                                                           \
            tile_product(4, nv, layout, a + r * row_step, stride, panel, k, c + r * nv * VW, keep, NULL);                       \
        for (; r + 2 <= rows; r += 2)                                                                                           \
            tile_product(2, nv, layout, a + r * row_step, stride, panel, k, c + r * nv * VW, keep, NULL);                       \
        for (; r < rows; r++)                                                                                                   \
            tile_product(1, nv, layout, a + r * row_step, stride, panel, k, c + r * nv * VW, keep, NULL);                       \
    }

ALL_ROWS(k_rows_1, 1, K_CONTIGUOUS)
ALL_ROWS(k_rows_2, 2, K_CONTIGUOUS)
ALL_ROWS(r_rows_1, 1, ROWS_CONTIGUOUS)
ALL_ROWS(r_rows_2, 2, ROWS_CONTIGUOUS)

void tg_rows_product(int64_t rows, int nv, int layout, const float *a, int64_t stride, const float *panel, int64_t k,
                     float *c, const float *keep, const char *next) {
    if (layout == K_CONTIGUOUS) (nv == 1 ? k_rows_1 : k_rows_2)(rows, a, stride, panel, k, c, keep, next);
    else (nv == 1 ? r_rows_1 : r_rows_2)(rows, a, stride, panel, k, c, keep, next);
}
