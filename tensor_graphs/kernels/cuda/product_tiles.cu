/* product_tiles: y[b, r, j] = sum over k of x[b, r, k] w[b, k, j] (by scales, + bias[j]) for many rows, as tensor_tiles.cu makes tiles; eight
 * rows of tiles lie beside each other, so that boxes come from the L2 cache. `parts` makes those of floats first, or W_PREPARED says that
 * those of w are an operand. TURNED: rows of a tile are those of w (of both, where there are two), its columns rows of x, of which there are few.
 * Floats of eight bits, and those of 32 that are rounded to TF32 as their boxes are copied, are summed along the rows of both (ACROSS 0).
 * Given by the text before: what one_element.cu and tensor_tiles.cu are given; PARTS_W (3 of floats, 2 of those rounded to two, else 1), PITCH_X, PITCH_W (elements of
 * a row of what is multiplied). */
#include "float_parts.cuh"
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "tensor_cores.cuh"
typedef TensorMaps<1 + PRODUCTS> Maps;
#endif

#define TG_BYTES (PARTS_X > 1 ? 2 : (int)sizeof(X))                /* of an element that is multiplied */
#define TG_OF_A_STEP (128 / TG_BYTES)
#define TG_STEPS ((INNER + TG_OF_A_STEP - 1) / TG_OF_A_STEP)
#ifdef TURNED
#define TG_LEFTS PRODUCTS
#define PARTS_A PARTS_W
#define PARTS_B PARTS_X
#define B_ACROSS 0
#define TG_APART ((int64_t)WIDTH)
#define TG_PACKED 0
#else
#define PARTS_A PARTS_X
#define PARTS_B PARTS_W
#define B_ACROSS ACROSS
#define TG_APART 1LL
#define TG_PACKED (WIDTH % (16 / sizeof(Y)) == 0)
#define TG_LEFTS 1
#endif
#define TG_A_BYTES (TG_LEFTS * 128 * 128)
#define TG_A_COPIED TG_A_BYTES
#define TG_B_BYTES (COLUMNS / TG_LEFTS * 128)

#if PARTS_X > 1 && PARTS_W > 1 && !defined W_PREPARED
#define TG_SCRATCH , uint16_t *x_parts, uint16_t *w_parts
#elif PARTS_X > 1
#define TG_SCRATCH , uint16_t *x_parts
#else
#define TG_SCRATCH
#endif

#if PARTS_X > 1
extern "C" __global__ void parts(Y *__restrict__ y, TG_OPERANDS, const int64_t *sizes TG_SCRATCH) {
    after_those_before();
    parts_of<INNER, PITCH_X, PARTS_X>(TG_X, x_parts, MATRICES_X * sizes[0]);
#if PARTS_W > 1 && !defined W_PREPARED
    parts_of<ACROSS ? WIDTH : INNER, PITCH_W, PARTS_W>(TG_W(0), w_parts, (int64_t)MATRICES_W * (ACROSS ? INNER : WIDTH));
#endif
}
#endif

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
struct Tile {
    int matrix, row, column;
};
#ifdef TURNED
TG_INLINE int64_t tiles_of(const int64_t *sizes) { return (WIDTH + 127) / 128 * ((sizes[0] + TG_OWN - 1) / TG_OWN); }
TG_INLINE Tile tile_of(int64_t at, const int64_t *sizes) {
    const int across = (int)((sizes[0] + TG_OWN - 1) / TG_OWN);
    return {0, (int)(at / across) * 128, (int)(at % across) * TG_OWN};
}
TG_INLINE int64_t place_of(const Tile &tile, int row, const int64_t *sizes) {
    return tile.row + row < WIDTH ? (int64_t)tile.column * WIDTH + tile.row + row : -1;
}
TG_INLINE int64_t columns_of(const Tile &tile, const int64_t *sizes) { return sizes[0] - tile.column; }
TG_INLINE int64_t row_of(const Tile &tile, int row, int column) { return tile.column + column; }
TG_INLINE int64_t column_of(const Tile &tile, int row, int column) { return tile.row + row; }
#else
#define TG_ACROSS_TILES ((WIDTH + TG_OWN - 1) / TG_OWN)
TG_INLINE int64_t tiles_of(const int64_t *sizes) { return MATRICES * ((sizes[0] + 127) / 128) * TG_ACROSS_TILES; }
TG_INLINE Tile tile_of(int64_t at, const int64_t *sizes) {          /* down eight rows of tiles, then to the next column */
    const int down = (int)((sizes[0] + 127) / 128);
    const int each = down * TG_ACROSS_TILES, inside = (int)(at % each), band = inside / (8 * TG_ACROSS_TILES);
    const int high = min(8, down - band * 8), rest = inside - band * 8 * TG_ACROSS_TILES;
    return {(int)(at / each), (band * 8 + rest % high) * 128, rest / high * TG_OWN};
}
TG_INLINE int64_t place_of(const Tile &tile, int row, const int64_t *sizes) {
    return tile.row + row < sizes[0] ? (tile.matrix * sizes[0] + tile.row + row) * WIDTH + tile.column : -1;
}
TG_INLINE int64_t columns_of(const Tile &tile, const int64_t *sizes) { return WIDTH - tile.column; }
TG_INLINE int64_t row_of(const Tile &tile, int row, int column) { return tile.row + row; }
TG_INLINE int64_t column_of(const Tile &tile, int row, int column) { return tile.column + column; }
#endif

/* Weights that no launch before has made may be copied before those end. */
#if PARTS_W == 1 || defined W_PREPARED
#define TG_EARLY_WEIGHTS 1
#else
#define TG_EARLY_WEIGHTS 0
#endif
#ifdef TURNED
#define TG_EARLY_A TG_EARLY_WEIGHTS
#define TG_EARLY_B 0
#else
#define TG_EARLY_A 0
#define TG_EARLY_B TG_EARLY_WEIGHTS
#endif
TG_INLINE void copy_left(uint32_t to, uint32_t ready, const Maps &maps, const Tile &tile, int step, const int64_t *sizes) {
#pragma unroll
    for (int a = 0; a < PARTS_A; a++)
#pragma unroll
        for (int p = 0; p < TG_LEFTS; p++)
            copy_box(to + a * TG_A_BYTES + p * (128 * 128), &maps.at[p], ready, step * TG_OF_A_STEP, tile.row,
                     a * MATRICES_X + (MATRICES_X == 1 ? 0 : tile.matrix));
}
TG_INLINE void copy_right(uint32_t to, uint32_t ready, const Maps &maps, const Tile &tile, int step, const int64_t *sizes) {
#pragma unroll
    for (int b = 0; b < PARTS_B; b++)
#pragma unroll
        for (int p = 0; p < PRODUCTS / TG_LEFTS; p++) {
            const uint32_t own = to + b * TG_B_BYTES + p * (TG_OWN * 128);
            const void *const map = &maps.at[TG_LEFTS + p];
            const int matrix = b * MATRICES_W + (MATRICES_W == 1 ? 0 : tile.matrix);
            if (B_ACROSS)
                for (int c = 0; c < TG_OWN; c += 64) copy_box(own + c * 128, map, ready, tile.column + c, step * 64, matrix);
            else copy_box(own, map, ready, step * TG_OF_A_STEP, tile.column, matrix);
        }
}
#endif
