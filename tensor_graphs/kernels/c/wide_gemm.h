/* wide_gemm.h: gemm.h in f64: the register tile C[r][l] = sum over k of A(r, k) * P[k][l] under every wide matrix product.
 *
 * A wide panel has WIDE_PANEL lanes (two vectors) or VD (one); the tile is as high as that of f32, since it fills as many
 * registers. */
#ifndef TG_WIDE_GEMM_H
#define TG_WIDE_GEMM_H

#include "gemm.h"
#include "wide.h"

#define WIDE_PANEL (2 * VD) /* lanes of a full panel */

/* C[r][l] = sum over i < k of A(r, i) * panel[i][l], for any number of rows, plus keep[l] * C[r][l] unless keep is NULL; nv is
 * 1 or 2; c is [rows][nv * VD], keep [nv * VD]. layout: K_CONTIGUOUS (rows of a lie `stride` apart) or ROWS_CONTIGUOUS
 * (successive k do). panel and c are aligned to 64 bytes. */
TG_API void tg_wide_rows_product(int64_t rows, int nv, int layout, const double *a, int64_t stride, const double *panel, int64_t k,
                                 double *c, const double *keep);

#endif
