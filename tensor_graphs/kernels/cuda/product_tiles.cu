/* product_tiles: y[b, r, j] = sum over k of x[b, r, k] w[b, k, j] (by scales, + bias[j]) for many rows, as tensor_tiles.cu makes tiles; eight
 * rows of tiles lie beside each other, so that boxes come from the L2 cache. `parts` makes those of floats first, or W_PREPARED says that
 * those of w are an operand. TURNED: rows of a tile are those of w, its columns rows of x, of which there are few. Floats of eight bits,
 * and those of 32 that are rounded to TF32 as their boxes are copied, are summed along the rows of both (ACROSS 0).
 * Given by the text before: what one_element.cu and tensor_tiles.cu are given; PARTS_W (3 of floats, 2 of those rounded to two, else 1), PITCH_X, PITCH_W (elements of
 * a row of what is multiplied). */
#include "float_parts.cuh"
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "tensor_cores.cuh"
#endif

#define TG_BYTES (PARTS_X > 1 ? 2 : (int)sizeof(X))                /* of an element that is multiplied */
#define TG_OF_A_STEP (128 / TG_BYTES)
#define TG_STEPS ((INNER + TG_OF_A_STEP - 1) / TG_OF_A_STEP)
#define TG_A_BYTES (128 * 128)
#define TG_A_COPIED TG_A_BYTES
#define TG_B_BYTES (COLUMNS * 128)
#ifdef TURNED
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
#endif

#if PARTS_X > 1 && PARTS_W > 1 && !defined W_PREPARED
#define TG_SCRATCH char *maps, uint16_t *x_parts, uint16_t *w_parts
#elif PARTS_X > 1
#define TG_SCRATCH char *maps, uint16_t *x_parts
#else
#define TG_SCRATCH char *maps
#endif

#if PARTS_X > 1
extern "C" __global__ void parts(Y *__restrict__ y, TG_OPERANDS, const int64_t *sizes, TG_SCRATCH) {
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
TG_INLINE int64_t tiles_of(const int64_t *sizes) { return (WIDTH + 127) / 128 * ((sizes[0] + COLUMNS - 1) / COLUMNS); }
TG_INLINE Tile tile_of(int64_t at, const int64_t *sizes) {
    const int across = (int)((sizes[0] + COLUMNS - 1) / COLUMNS);
    return {0, (int)(at / across) * 128, (int)(at % across) * COLUMNS};
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

#if PARTS_X > 1
#define TG_LEFT x_parts
#else
#define TG_LEFT TG_X
#endif
#if PARTS_W > 1
#define TG_RIGHT(number) TG_W_PARTS_OF(number)
#else
#define TG_RIGHT(number) TG_W(number)
#endif
#ifdef TURNED
#define DRAFT_A(draft) draft_rows<TG_BYTES>(draft, TG_RIGHT(0), INNER, WIDTH, PARTS_W, PITCH_W, 128)
#define DRAFT_B(draft, number) draft_rows<TG_BYTES>(draft, TG_LEFT, INNER, (uint32_t)sizes[0], PARTS_X, PITCH_X, COLUMNS)
#else
#define DRAFT_A(draft) draft_rows<TG_BYTES>(draft, TG_LEFT, INNER, (uint32_t)sizes[0], PARTS_X * MATRICES_X, PITCH_X, 128)
#if ACROSS
#define DRAFT_B(draft, number) draft_rows<TG_BYTES>(draft, TG_RIGHT(number), WIDTH, INNER, PARTS_W * MATRICES_W, PITCH_W, 64)
#else
#define DRAFT_B(draft, number) draft_rows<TG_BYTES>(draft, TG_RIGHT(number), INNER, WIDTH, PARTS_W * MATRICES_W, PITCH_W, TG_OWN)
#endif
#endif
TG_INLINE void copy_step(uint32_t to, uint32_t ready, const char *map, const Tile &tile, int step, const int64_t *sizes) {
#pragma unroll
    for (int a = 0; a < PARTS_A; a++)
        copy_box(to + a * TG_A_BYTES, map, ready, step * TG_OF_A_STEP, tile.row, a * MATRICES_X + (MATRICES_X == 1 ? 0 : tile.matrix));
#pragma unroll
    for (int b = 0; b < PARTS_B; b++) {
        const uint32_t at = to + PARTS_A * TG_A_BYTES + b * TG_B_BYTES;
        const int matrix = b * MATRICES_W + (MATRICES_W == 1 ? 0 : tile.matrix);
#pragma unroll
        for (int p = 0; p < PRODUCTS; p++) {
            const uint32_t own = at + p * (TG_OWN * 128);
            const char *const of_b = map + 128 * (1 + p);
            if (B_ACROSS)
                for (int c = 0; c < TG_OWN; c += 64) copy_box(own + c * 128, of_b, ready, tile.column + c, step * 64, matrix);
            else copy_box(own, of_b, ready, step * TG_OF_A_STEP, tile.column, matrix);
        }
    }
}
#endif
