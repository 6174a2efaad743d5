/* gemm.h: the register tile under every matrix product here: C[r][l] = sum over k of A(r, k) * P[k][l].
 *
 * P is a panel of `nv` vectors (nv * VW lanes) per k, packed; A is read one element at a time and broadcast, from memory
 * in which either k is contiguous (rows lie `stride` apart) or the rows are (successive k lie `stride` apart).
 * TILE_ROWS * 2 accumulators plus two lanes of P fill the registers: 14 x 2 of 32 (AVX-512), 12 x 2 of 32 (NEON), 6 x 2 of
 * 16 (AVX2, SSE2). */
#ifndef TG_GEMM_H
#define TG_GEMM_H

#include "vec.h"

#if defined(__AVX512F__)
#define TILE_ROWS 14
#elif defined(__aarch64__)
#define TILE_ROWS 12
#else
#define TILE_ROWS 6
#endif
#define PANEL (2 * VW) /* lanes of a full panel */
#define NEAR_ROWS (TILE_ROWS > 8 ? TILE_ROWS / 2 : TILE_ROWS) /* rows 4096 bytes apart that one set of the L1 cache holds */

enum { K_CONTIGUOUS, ROWS_CONTIGUOUS };

/* C[r][l] = sum over i < k of A(r, i) * panel[i][l], for any number of rows, plus keep[l] * C[r][l] unless keep is NULL; nv is
 * 1 or 2; c is [rows][nv * VW], keep [nv * VW]. panel is aligned to 64 bytes. `next`: from here on 16 bytes per k and tile
 * are asked into the L2 cache on the way (NULL: none). */
TG_API void tg_rows_product(int64_t rows, int nv, int layout, const float *a, int64_t stride, const float *panel, int64_t k,
                            float *c, const float *keep, const char *next);

#endif
