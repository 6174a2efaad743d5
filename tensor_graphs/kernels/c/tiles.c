/* tiles.c: the sizes of the register tiles of matrix products, for who says how much memory a product takes before it is compiled. */
#include "pairs.h"
#include "wide_gemm.h"

/* 0: rows, 1: lanes. */
TG_API int tg_tile_f32(int axis) { return axis ? PANEL : TILE_ROWS; }
TG_API int tg_tile_f64(int axis) { return axis ? WIDE_PANEL : TILE_ROWS; }

/* Whether products of bfloat16 are made by pairs. */
TG_API int tg_pairs(void) { return PAIRS; }

/* Whether an instruction adds products of four bytes (packed_blocks.h). */
TG_API int tg_four_bytes(void) {
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
    return 1;
#else
    return 0;
#endif
}
