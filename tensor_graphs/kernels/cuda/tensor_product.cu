/* tensor_product: y[b, r, j] = sum over k of x[b, r, k] w[b, k, j] (+ bias[j]) for many rows, by tensor cores of compute capability 9.0.
 * A block has one warp that has boxes of x and w copied to shared memory, STAGES of them ahead, and two warpgroups that multiply 64
 * rows by COLUMNS each; it goes from tile to tile, eight rows of tiles beside each other, so that boxes come from the L2 cache.
 * A float is the sum of three bf16 numbers (float_parts.cuh): products by it are made of those of its parts, the smallest first, and
 * those below 2^-25 are left out; `parts` makes them first, or W_PREPARED says that those of w are an operand. Tensor cores cut off
 * what they add to a sum (Fasi, Higham, Mikaitis and Pranesh, Numerical behavior of NVIDIA tensor cores, 2021), so that those of floats
 * are made of pieces: of all small parts, then of TG_CHUNK steps each. Of few tiles the sums are cut into SPLITS, which `joined` adds
 * up. `plain` (one_element.cu) is for operands that boxes cannot be copied of.
 * Given by the text before: what one_element.cu is given; KIND (Bf16, F16: what is multiplied), COLUMNS, STAGES, SPLITS, PARTS_W (3 of
 * floats, else 1). */
#include "float_parts.cuh"
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "tensor_cores.cuh"
#endif

#define TG_DEPTH 64
#define TG_STEPS ((INNER + TG_DEPTH - 1) / TG_DEPTH)
#define TG_PAIRS (PARTS_X * PARTS_W == 9 ? 6 : PARTS_X * PARTS_W)
#define TG_CHUNK 4
#define TG_X_BYTES (128 * 128)
#define TG_W_BYTES (COLUMNS * 128)
#define TG_STAGE (TG_X_BYTES + TG_W_BYTES)
#define TG_ACROSS_TILES ((WIDTH + COLUMNS - 1) / COLUMNS)

#if PARTS_X == 3 && PARTS_W == 3 && !defined W_PREPARED
#define TG_SCRATCH char *maps, float *sums, uint16_t *x_parts, uint16_t *w_parts
#elif PARTS_X == 3
#define TG_SCRATCH char *maps, float *sums, uint16_t *x_parts
#else
#define TG_SCRATCH char *maps, float *sums
#endif

#if PARTS_X == 3
extern "C" __global__ void parts(Y *__restrict__ y, TG_OPERANDS, const int64_t *sizes, TG_SCRATCH) {
    after_those_before();
    parts_of(x, x_parts, MATRICES_X * sizes[0] * INNER);
#if PARTS_W == 3 && !defined W_PREPARED
    parts_of(w, w_parts, (int64_t)MATRICES_W * INNER * WIDTH);
#endif
}
#endif

#if SPLITS > 1
extern "C" __global__ void joined(Y *__restrict__ y, TG_OPERANDS, const int64_t *sizes, TG_SCRATCH) {
    after_those_before();
    const int64_t count = MATRICES * sizes[0] * WIDTH;
    for (int64_t i = blockIdx.x * 256LL + threadIdx.x; i < count; i += gridDim.x * 256LL) {
        float sum = sums[i];
#pragma unroll
        for (int s = 1; s < SPLITS; s++) sum += sums[s * count + i];
#ifdef BIAS
        sum += WIDE_B(bias[i % WIDTH]);
#endif
        y[i] = NARROW_Y(says_nothing(sum) ? one_element(TG_GIVEN, sizes[0], i) : sum);
    }
}
#endif

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* Where a tile lies: tiles go down eight rows of them, then to the next column. */
struct Tile {
    int matrix, row, column;
};
TG_INLINE Tile tile_of(int64_t at, int down) {
    const int each = down * TG_ACROSS_TILES, inside = (int)(at % each), band = inside / (8 * TG_ACROSS_TILES);
    const int high = min(8, down - band * 8), rest = inside - band * 8 * TG_ACROSS_TILES;
    return {(int)(at / each), (band * 8 + rest % high) * 128, rest / high * COLUMNS};
}

/* Y, or float where the sums are cut. */
template <class T> TG_INLINE void store_tile(T *y, const float (&d)[COLUMNS / 2], const Tile &tile, int64_t rows) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int64_t first = tile.row + (threadIdx.x / 32 - 4) * 16 + g;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int64_t row = first + 8 * h;
        T *const out = y + (tile.matrix * rows + row) * WIDTH;
        if (sizeof(T) == 2 && WIDTH % 8 == 0) {
#pragma unroll
            for (int j = 0; j < COLUMNS / 8; j += 4) {
                uint32_t word[4];
#pragma unroll
                for (int i = 0; i < 4; i++) word[i] = two_of(KIND(), d[4 * (j + i) + 2 * h], d[4 * (j + i) + 2 * h + 1]);
                turn_quad(word, t);
                const int column = tile.column + 8 * (j + t);
                if (row < rows && column < WIDTH)
                    put_pack<4>((uint32_t *)(out + column), Pack<uint32_t, 4>{{word[0], word[1], word[2], word[3]}});
            }
        } else
#pragma unroll
            for (int j = 0; j < COLUMNS / 8; j++) {
                const int column = tile.column + 8 * j + 2 * t;
                const float one = d[4 * j + 2 * h], two = d[4 * j + 2 * h + 1];
                if (row >= rows || column >= WIDTH) continue;
                if (sizeof(T) == 4 && WIDTH % 2 == 0) put_pack<2>((float *)(out + column), Pack<float, 2>{{one, two}});
                else {
                    out[column] = sizeof(T) == 4 ? one : NARROW_Y(one);
                    if (column + 1 < WIDTH) out[column + 1] = sizeof(T) == 4 ? two : NARROW_Y(two);
                }
            }
    }
}

extern "C" __global__ void __launch_bounds__(384, 1) tensor_product(Y *__restrict__ y, TG_OPERANDS, const int64_t *sizes, TG_SCRATCH) {
    extern __shared__ char shared[];
    __shared__ __align__(8) uint64_t barriers[2 * STAGES];
    __shared__ __align__(128) char draft[128];
    const uint32_t tiles = (shared_at(shared) + 1023) / 1024 * 1024, full = shared_at(barriers), empty = full + 8 * STAGES;
    const int group = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_begin(full + 8 * s, 1);
            barrier_begin(empty + 8 * s, 8);
        }
        barriers_begun();
    }
    __syncthreads();
    after_those_before();
    const int64_t rows = sizes[0];
    const int down = (int)((rows + 127) / 128);
    const int64_t count = (int64_t)MATRICES * down * TG_ACROSS_TILES * SPLITS;
    if (group == 0) {
        give_registers<40>();
        if (threadIdx.x < 32) {
            char *const map = maps + blockIdx.x * 256;
#if PARTS_X == 3
            make_map(draft, map, x_parts, INNER, (uint32_t)rows, 3 * MATRICES_X, 2 * INNER, 2 * INNER * rows, 128);
#else
            make_map(draft, map, x, INNER, (uint32_t)rows, MATRICES_X, 2 * INNER, 2 * INNER * rows, 128);
#endif
#if PARTS_W == 3
            const void *const right = w_parts;
#else
            const void *const right = w;
#endif
            if (ACROSS) make_map(draft, map + 128, right, WIDTH, INNER, PARTS_W * MATRICES_W, 2 * WIDTH, 2LL * WIDTH * INNER, 64);
            else make_map(draft, map + 128, right, INNER, WIDTH, PARTS_W * MATRICES_W, 2 * INNER, 2LL * WIDTH * INNER, COLUMNS);
            if (threadIdx.x == 0) {
                map_is_made(map);
                map_is_made(map + 128);
                int stage = 0, parity = 1;
                for (int64_t at = blockIdx.x; at < count; at += gridDim.x) {
                    const Tile tile = tile_of(at / SPLITS, down);
                    const int part = (int)(at % SPLITS), end = TG_PAIRS * TG_STEPS * (part + 1) / SPLITS;
                    for (int i = TG_PAIRS * TG_STEPS * part / SPLITS; i < end; i++) {
                        /* of 3 and 3 parts: low high, middle middle, high low, middle high, high middle, high high */
                        const int pair = i / TG_STEPS, step = i % TG_STEPS;
                        const int of_x = TG_PAIRS == 6 ? 0x001012 >> 4 * pair & 3 : TG_PAIRS == 3 ? 2 - pair : 0;
                        const int of_w = TG_PAIRS == 6 ? 0x010210 >> 4 * pair & 3 : 0;
                        wait_for(empty + 8 * stage, parity);
                        const uint32_t to = tiles + stage * TG_STAGE, ready = full + 8 * stage;
                        arrive_expecting(ready, TG_STAGE);
                        copy_box(to, map, ready, step * TG_DEPTH, tile.row,
                                 of_x * MATRICES_X + (MATRICES_X == 1 ? 0 : tile.matrix));
                        const int matrix = of_w * MATRICES_W + (MATRICES_W == 1 ? 0 : tile.matrix);
                        if (ACROSS)
                            for (int c = 0; c < COLUMNS; c += 64)
                                copy_box(to + TG_X_BYTES + c * 128, map + 128, ready, tile.column + c, step * TG_DEPTH, matrix);
                        else copy_box(to + TG_X_BYTES, map + 128, ready, step * TG_DEPTH, tile.column, matrix);
                        if (++stage == STAGES) stage = 0, parity ^= 1;
                    }
                }
            }
        }
    } else {
        take_registers<232>();
        int stage = 0, parity = 0;
        for (int64_t at = blockIdx.x; at < count; at += gridDim.x) {
            const Tile tile = tile_of(at / SPLITS, down);
            const int part = (int)(at % SPLITS);
            const int steps = TG_PAIRS * TG_STEPS * (part + 1) / SPLITS - TG_PAIRS * TG_STEPS * part / SPLITS;
            float d[COLUMNS / 2];
#if PARTS_X == 3
            float total[COLUMNS / 2];
#pragma unroll
            for (int i = 0; i < COLUMNS / 2; i++) total[i] = 0;
#endif
            const int large = (TG_PAIRS - 1) * TG_STEPS - TG_PAIRS * TG_STEPS * part / SPLITS;       /* the first of high · high */
            bool begins = true;
            uint32_t before = 0;
            for (int step = 0; step < steps; step++) {
                wait_for(full + 8 * stage, parity);
                const uint32_t left = tiles + stage * TG_STAGE + (group - 1) * (64 * 128), right = tiles + stage * TG_STAGE + TG_X_BYTES;
                hold(d);
                products_begin();
#pragma unroll
                for (int i = 0; i < TG_DEPTH / 16; i++)
                    Warpgroup<KIND, COLUMNS>::add<0, ACROSS>(
                        d, tile_along(left + 32 * i), ACROSS ? tile_across(right + 2048 * i, 64 * 128) : tile_along(right + 32 * i),
                        !begins || i > 0);
                products_end();
                if (!begins) {
                    products_wait<1>();
                    if (threadIdx.x % 32 == 0) arrive(before);
                }
                before = empty + 8 * stage;
                if (++stage == STAGES) stage = 0, parity ^= 1;
                const int past = step + 1 - large;
                begins = PARTS_X == 3 && past >= 0 && past % TG_CHUNK == 0;
                if (!begins && step + 1 < steps) continue;
                products_wait<0>();
                hold(d);
                if (threadIdx.x % 32 == 0) arrive(before);
#if PARTS_X == 3
#pragma unroll
                for (int i = 0; i < COLUMNS / 2; i++) total[i] += d[i];
#endif
            }
#if PARTS_X == 3
#pragma unroll
            for (int i = 0; i < COLUMNS / 2; i++) d[i] = total[i];
#endif
#if SPLITS > 1
            store_tile(sums + part * MATRICES * rows * WIDTH, d, tile, rows);
#else
#ifdef BIAS
#pragma unroll
            for (int i = 0; i < COLUMNS / 2; i++) {
                const int column = tile.column + i / 4 * 8 + 2 * (threadIdx.x % 4) + i % 2;
                if (column < WIDTH) d[i] += WIDE_B(bias[column]);
            }
#endif
            store_tile(y, d, tile, rows);
#if PARTS_X == 3
            bool again = false;
#pragma unroll
            for (int i = 0; i < COLUMNS / 2; i++) again = again || says_nothing(d[i]);
            for (int i = 0; again && i < COLUMNS / 2; i++) {        /* each thread has stored what it has */
                const int column = tile.column + i / 4 * 8 + 2 * (threadIdx.x % 4) + i % 2;
                const int64_t row = tile.row + (threadIdx.x / 32 - 4) * 16 + threadIdx.x % 32 / 4 + i / 2 % 2 * 8;
                const int64_t place = (tile.matrix * rows + row) * WIDTH + column;
                if (row < rows && column < WIDTH && says_nothing(y[place])) y[place] = one_element(TG_GIVEN, rows, place);
            }
#endif
#endif
        }
    }
}
#endif
