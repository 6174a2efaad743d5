/* skinny_product: y[r, j] = sum over k of x[r, k] w[j, k] (+ bias[j]) for a few dozen rows at most, by tensor cores from compute capability
 * 8.0 on: all of w is read once for every 16 TILES rows. A block has 16 columns for each of its warps and SPAN numbers of k: it keeps
 * those of x in shared memory, and each warp copies 64 numbers of its rows of w at a time for itself, STAGES ahead; the first ones before
 * what computes x has ended. SPLITS spans are added up by `skinny_joined`. A float of x is three bf16 numbers, multiplied one after the
 * other, the smallest first; sums that are not finite are made again.
 * Given by the text before: what operands.cu and one_element.cu are given; KIND (Bf16, F16: what is multiplied), TILES, SPAN (a multiple of 64), SPLITS,
 * WARPS, STAGES. */
#include "float_parts.cuh"
#include "tensor_cores.cuh"

#define TG_ROWS (16 * TILES)
#define TG_PACKS (SPAN / 8)
#define TG_X_PART (TG_ROWS * SPAN * 2)
#define TG_W_STAGE (16 * 64 * 2)
#define TG_BLOCKS ((WIDTH + 16 * WARPS - 1) / (16 * WARPS))

/* Where a pack of 8 elements of a row of so many packs lies: packs are moved by the row, so that 8 rows of a column lie in different banks. */
TG_INLINE uint32_t place(int row, int chunk, int packs) { return (uint32_t)(row * packs + (chunk ^ (row & 7))) * 16; }

#if SPLITS > 1
#define TG_SUMS , float *sums
#else
#define TG_SUMS
#endif
extern "C" __global__ void __launch_bounds__(32 * WARPS) skinny_product(Y *__restrict__ y, TG_OPERANDS, const int64_t *sizes TG_SUMS) {
    extern __shared__ __align__(128) char shared[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int column = (int)(blockIdx.x % TG_BLOCKS) * (16 * WARPS) + 16 * warp, split = (int)(blockIdx.x / TG_BLOCKS % SPLITS);
    const int64_t first = blockIdx.x / (TG_BLOCKS * SPLITS) * (int64_t)TG_ROWS;
    const int from = split * SPAN, end = from + SPAN < INNER ? from + SPAN : INNER, turns = (end - from + 63) / 64;
    const uint32_t of_x = shared_at(shared), of_w = of_x + PARTS_X * TG_X_PART + warp * (STAGES * TG_W_STAGE);
    auto copy_turn = [&](int turn) {
        if (turn < turns)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int row = i * 4 + lane / 8, chunk = lane % 8, k = from + turn * 64 + chunk * 8;
                const bool is = column + row < WIDTH && k < end;
                copy_16(of_w + turn % STAGES * TG_W_STAGE + place(row, chunk, 8), w + (is ? (int64_t)(column + row) * INNER + k : 0),
                        is ? 16 : 0);
            }
        copies_end();
    };
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) copy_turn(i);
    after_those_before();
    const int64_t rows = sizes[0];
    for (int at = threadIdx.x; at < TG_ROWS * TG_PACKS; at += 32 * WARPS) {
        const int row = at / TG_PACKS, chunk = at % TG_PACKS, k = from + chunk * 8;
        const bool is = first + row < rows && k < end;
#if PARTS_X == 3
        Pack<float, 4> half[2] = {};
        Pack<uint16_t, 8> part[3];
        if (is)
#pragma unroll
            for (int h = 0; h < 2; h++) half[h] = pack_at<4>(x + (first + row) * INNER + k + 4 * h);
#pragma unroll
        for (int e = 0; e < 8; e++) three_parts(half[e / 4].at[e % 4], part[0].at[e], part[1].at[e], part[2].at[e]);
#pragma unroll
        for (int p = 0; p < 3; p++) put_pack<8>((uint16_t *)(shared + p * TG_X_PART + place(row, chunk, TG_PACKS)), part[p]);
#else
        Pack<uint16_t, 8> some = {};
        if (is) some = pack_at<8>(x + (first + row) * INNER + k);
        put_pack<8>((uint16_t *)(shared + place(row, chunk, TG_PACKS)), some);
#endif
    }
    __syncthreads();
    float d[TILES][2][4] = {};
    for (int turn = 0; turn < turns; turn++) {
        copies_wait<STAGES - 2>();
        __syncwarp();
        copy_turn(turn + STAGES - 1);                               /* over what all lanes have read in the turn before */
        const uint32_t weights = of_w + turn % STAGES * TG_W_STAGE;
        float piece[TILES][2][4] = {};                              /* tensor cores cut off what they add to a sum */
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t b[4];
            four_blocks(b, weights + place(lane / 16 * 8 + lane % 8, 2 * i + lane / 8 % 2, 8));
#pragma unroll
            for (int p = PARTS_X - 1; p >= 0; p--)
#pragma unroll
                for (int m = 0; m < TILES; m++) {
                    uint32_t a[4];
                    four_blocks(a, of_x + p * TG_X_PART + place(16 * m + lane % 16, turn * 8 + 2 * i + lane / 16, TG_PACKS));
                    add_product(KIND(), piece[m][0], a, b[0], b[1]);
                    add_product(KIND(), piece[m][1], a, b[2], b[3]);
                }
        }
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int i = 0; i < 8; i++) d[m][i / 4][i % 4] += piece[m][i / 4][i % 4];
    }
    copies_wait<0>();
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int64_t row = first + 16 * m + g + i / 2 % 2 * 8;
            const int at = column + i / 4 * 8 + 2 * t + i % 2;
            if (row >= rows || at >= WIDTH) continue;
            float sum = d[m][i / 4][i % 4];
#if SPLITS > 1
            sums[(split * rows + row) * WIDTH + at] = sum;
#else
            sum = ended(Sums{{sum}}, row, at, TG_GIVEN);
            y[row * WIDTH + at] = NARROW_Y(says_nothing(sum) ? one_element(TG_GIVEN, rows, row * WIDTH + at) : sum);
#endif
        }
}

#if SPLITS > 1
extern "C" __global__ void __launch_bounds__(256) skinny_joined(Y *__restrict__ y, TG_OPERANDS, const int64_t *sizes, const float *sums) {
    const int64_t count = sizes[0] * WIDTH, i = blockIdx.x * 256LL + threadIdx.x;
    after_those_before();
    if (i >= count) return;
    float sum = 0;
#pragma unroll
    for (int s = 0; s < SPLITS; s++) sum += sums[s * count + i];
    sum = ended(Sums{{sum}}, i / WIDTH, i % WIDTH, TG_GIVEN);
    y[i] = NARROW_Y(says_nothing(sum) ? one_element(TG_GIVEN, sizes[0], i) : sum);
}
#endif
