/* conv_tiles: a convolution as tensor_tiles.cu makes tiles, nothing of which is unrolled in memory: rows of a tile are TILE_N images by
 * TILE_H by TILE_W places, its columns outputs. `turned` makes [n][h][SEEN_W][channels] of x first, with PACKED channels (a multiple of
 * 8), each row between the zeros around it, and in parts where it is of floats. So TAPS places of the window that lie beside each other
 * (all of a row, without dilation) are one run of numbers, of which a step takes 64; places of a tile see runs that overlap. Rows
 * outside of an image are 0 as boxes are. Of w there is [part][run][output][number].
 * Given by the text before: what conv_element.cu and tensor_tiles.cu are given; PARTS_W, PACKED, TAPS, SEEN_W. */
#include "float_parts.cuh"
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "tensor_cores.cuh"
typedef TensorMaps<2> Maps;
#endif

#define TG_RUN (TAPS * PACKED)
#define TG_OF_RUN ((TG_RUN + 63) / 64)
#define TG_RUNS (KERNEL_W / TAPS)
#define TG_STEPS (KERNEL_H * TG_RUNS * TG_OF_RUN)
#define TG_A_BYTES (128 * 128)
#define TG_A_COPIED (TILE_N * TILE_H * TILE_W * 128)
#define TG_B_BYTES (COLUMNS * 128)
#define PARTS_A PARTS_X
#define PARTS_B PARTS_W
#define B_ACROSS 0
#define TG_LEFTS 1
#define TG_APART ((int64_t)OUT_H * OUT_W)
#define TG_PACKED 0
#define TG_SCRATCH , uint16_t *seen

/* A block takes 64 elements of 64 channels. */
extern "C" __global__ void __launch_bounds__(256) turned(Y *__restrict__ y, TG_OPERANDS, const int64_t *sizes TG_SCRATCH) {
    __shared__ X tile[64][64 + 4 / sizeof(X)];
    constexpr int SIZE = IN_H * SEEN_W, GROUPS = (SIZE + 63) / 64, OF_CHANNELS = (PACKED + 63) / 64;
    const int64_t image = blockIdx.x / (GROUPS * OF_CHANNELS);
    const int first = (int)(blockIdx.x / OF_CHANNELS % GROUPS) * 64, channel = (int)(blockIdx.x % OF_CHANNELS) * 64;
    {
        const int at = threadIdx.x % 64, by = threadIdx.x / 64, h = (first + at) / SEEN_W, v = (first + at) % SEEN_W - PAD_W;
        const bool is = first + at < SIZE && v >= 0 && v < IN_W;
        const X *const from = x + ((image * CHANNELS + channel + by) * IN_H + h) * IN_W + v;
        X found[16];                                                /* all of them are under way at once */
        after_those_before();
#pragma unroll
        for (int i = 0; i < 16; i++) found[i] = is && channel + by + 4 * i < CHANNELS ? from[4LL * i * IN_H * IN_W] : X();
#pragma unroll
        for (int i = 0; i < 16; i++) tile[by + 4 * i][at] = found[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = threadIdx.x; i < 64 * 8; i += 256) {
        const int at = i / 8, c = i % 8 * 8;
        if (first + at >= SIZE || channel + c >= PACKED) continue;
        uint16_t *const to = seen + (image * SIZE + first + at) * PACKED + channel + c;
#if PARTS_X == 3
        Pack<uint16_t, 8> part[3];
#pragma unroll
        for (int e = 0; e < 8; e++) three_parts(tile[c + e][at], part[0].at[e], part[1].at[e], part[2].at[e]);
#pragma unroll
        for (int p = 0; p < 3; p++) put_pack<8>(to + p * sizes[0] * SIZE * PACKED, part[p]);
#else
        Pack<uint16_t, 8> all;
#pragma unroll
        for (int e = 0; e < 8; e++) all.at[e] = tile[c + e][at];
        put_pack<8>(to, all);
#endif
    }
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
struct Tile {
    int image, row, place, column;
};
#define TG_DOWN ((OUT_H + TILE_H - 1) / TILE_H)
#define TG_ALONG ((OUT_W + TILE_W - 1) / TILE_W)
#define TG_ACROSS_TILES ((OUTPUTS + COLUMNS - 1) / COLUMNS)
TG_INLINE int64_t tiles_of(const int64_t *sizes) { return (sizes[0] + TILE_N - 1) / TILE_N * (TG_DOWN * TG_ALONG * TG_ACROSS_TILES); }
TG_INLINE Tile tile_of(int64_t at, const int64_t *sizes) {
    const int column = (int)(at % TG_ACROSS_TILES), place = (int)(at / TG_ACROSS_TILES % TG_ALONG);
    at /= TG_ACROSS_TILES * TG_ALONG;
    return {(int)(at / TG_DOWN) * TILE_N, (int)(at % TG_DOWN) * TILE_H, place * TILE_W, column * COLUMNS};
}
TG_INLINE int64_t place_of(const Tile &tile, int row, const int64_t *sizes) {
    const int64_t image = tile.image + row / (TILE_H * TILE_W);
    const int h = tile.row + row / TILE_W % TILE_H, v = tile.place + row % TILE_W;
    if (row >= TILE_N * TILE_H * TILE_W || image >= sizes[0] || h >= OUT_H || v >= OUT_W) return -1;
    return ((image * OUTPUTS + tile.column) * OUT_H + h) * OUT_W + v;
}
TG_INLINE int64_t columns_of(const Tile &tile, const int64_t *sizes) { return OUTPUTS - tile.column; }
TG_INLINE int64_t row_of(const Tile &tile, int row, int column) { return 0; }
TG_INLINE int64_t column_of(const Tile &tile, int row, int column) { return tile.column + column; }
#define TG_EARLY_A 0
#define TG_EARLY_B 1
TG_INLINE void copy_left(uint32_t to, uint32_t ready, const Maps &maps, const Tile &tile, int step, const int64_t *sizes) {
    const int from = step % TG_OF_RUN * 64, run = step / TG_OF_RUN, h = tile.row * STRIDE_H - PAD_H + run / TG_RUNS * DILATION_H;
#pragma unroll
    for (int a = 0; a < PARTS_A; a++)
        copy_box(to + a * TG_A_BYTES, &maps.at[0], ready, from, run % TG_RUNS, tile.place, h, (int)(a * sizes[0]) + tile.image);
}
TG_INLINE void copy_right(uint32_t to, uint32_t ready, const Maps &maps, const Tile &tile, int step, const int64_t *sizes) {
#pragma unroll
    for (int b = 0; b < PARTS_B; b++)
        copy_box(to + b * TG_B_BYTES, &maps.at[1], ready, step % TG_OF_RUN * 64, tile.column, b * KERNEL_H * TG_RUNS + step / TG_OF_RUN);
}
#endif
