/* skinny_product: y[r, j] = sum over k of x[r, k] w[j, k], and what becomes of it, for few rows, by tensor cores from compute capability
 * 8.0 on. Rows of a weight are the 16 rows of a product and rows of x its 8 columns, so that little is wasted. A block has 16 TILES rows
 * of each weight, and the steps of 32 numbers of k are dealt to its WARPS. Packs go from memory straight to registers: a lane has
 * eight numbers of two rows of a weight and those of x by which they are multiplied; in which order numbers are summed is free. A step of
 * the weights is under way while the one before it is multiplied, the first before what computes x has ended.
 * A float of x is three bf16 numbers, the smallest multiplied first; sums that are not finite are made again.
 * Given by the text before: what one_element.cu is given; KIND (Bf16, F16: what is multiplied), TILES, GROUPS (of eight
 * rows of x), WARPS. */
#include "float_parts.cuh"
#include "tensor_cores.cuh"

#define TG_ROWS (8 * GROUPS)
#define TG_COLUMNS (16 * TILES)
#define TG_BLOCKS ((WIDTH + TG_COLUMNS - 1) / TG_COLUMNS)
#define TG_STEPS ((INNER + 31) / 32)
#define TG_LINE (TG_COLUMNS * PRODUCTS + 4)                         /* so that a warp's sums lie in different banks */

typedef Pack<uint32_t, 4> Eights;                                   /* eight numbers of 16 bits */

/* Of a weight, here and not later; the 256 bytes around them come near, which are read next. */
TG_INLINE Eights eight_now(const W *from) {
    Eights x;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.at[0]), "=r"(x.at[1]), "=r"(x.at[2]), "=r"(x.at[3]) : "l"(from));
    return x;
}
/* What the eight numbers of x at `from` are multiplied as; zeros where they are not there. */
TG_INLINE void eight_of(Eights (&part)[PARTS_X], const X *from, bool is) {
#pragma unroll
    for (int p = 0; p < PARTS_X; p++) part[p] = Eights{};
    if (!is) return;
#if PARTS_X == 3
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const Pack<float, 2> two = pack_at<2>(from + 2 * i);
        uint16_t low[3], high[3];
        three_parts(two.at[0], low[0], low[1], low[2]);
        three_parts(two.at[1], high[0], high[1], high[2]);
#pragma unroll
        for (int p = 0; p < 3; p++) part[p].at[i] = low[p] | (uint32_t)high[p] << 16;
    }
#else
    part[0] = pack_at<4>((const uint32_t *)from);
#endif
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) skinny_product(Y *__restrict__ y, TG_OPERANDS, const int64_t *sizes) {
    extern __shared__ __align__(16) float shared[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const unsigned groups = gridDim.x / TG_BLOCKS;                  /* those of the same weights follow each other, which come from the cache */
    const int first_column = (int)(blockIdx.x / groups) * TG_COLUMNS;
    const int64_t first_row = blockIdx.x % groups * (int64_t)TG_ROWS;
    Eights weights[PRODUCTS * TILES][2], some[GROUPS][PARTS_X];
    auto take_weights = [&](int m, int step) {
        const int k = step * 32 + 8 * t;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int column = first_column + m % TILES * 16 + 8 * h + g;
            const int64_t at = (WIDTH % TG_COLUMNS == 0 || column < WIDTH ? column : WIDTH - 1) * (int64_t)INNER + k;
            if (k < INNER) weights[m][h] = eight_now(TG_W(m / TILES) + at);
            else weights[m][h] = Eights{};
        }
    };
#pragma unroll
    for (int m = 0; m < PRODUCTS * TILES; m++) take_weights(m, warp);
    after_those_before();
    const int64_t rows = sizes[0];
    auto take_rows = [&](int step) {
#pragma unroll
        for (int n = 0; n < GROUPS; n++) {
            const int64_t row = first_row + 8 * n + g;
            const int k = step * 32 + 8 * t;
            eight_of(some[n], TG_X + row * INNER + k, row < rows && k < INNER);
        }
    };
    take_rows(warp);
    float d[PRODUCTS * TILES][GROUPS][4] = {};
    for (int step = warp; step < TG_STEPS; step += WARPS) {
        Eights by[GROUPS][PARTS_X];
#pragma unroll
        for (int n = 0; n < GROUPS; n++)
#pragma unroll
            for (int p = 0; p < PARTS_X; p++) by[n][p] = some[n][p];
        take_rows(step + WARPS);
#pragma unroll
        for (int m = 0; m < PRODUCTS * TILES; m++) {
#pragma unroll
            for (int n = 0; n < GROUPS; n++) {
                float piece[4] = {};                                /* tensor cores cut off what they add to a sum */
#pragma unroll
                for (int p = PARTS_X - 1; p >= 0; p--)
#pragma unroll
                    for (int i = 0; i < 4; i += 2) {
                        const uint32_t a[4] = {weights[m][0].at[i], weights[m][1].at[i], weights[m][0].at[i + 1], weights[m][1].at[i + 1]};
                        add_product(KIND(), piece, a, by[n][p].at[i], by[n][p].at[i + 1]);
                    }
#pragma unroll
                for (int e = 0; e < 4; e++) d[m][n][e] += piece[e];
            }
            take_weights(m, step + WARPS);
        }
    }
#pragma unroll
    for (int m = 0; m < PRODUCTS * TILES; m++)
#pragma unroll
        for (int i = 0; i < 4 * GROUPS; i++)
            shared[(warp * TG_ROWS + i / 4 * 8 + 2 * t + i % 2) * TG_LINE + 16 * m + i / 2 % 2 * 8 + g] = d[m][i / 4][i % 4];
    __syncthreads();
    for (int i = threadIdx.x; i < TG_ROWS * TG_COLUMNS; i += 32 * WARPS) {
        const int column = first_column + i % TG_COLUMNS;
        const int64_t row = first_row + i / TG_COLUMNS;
        if (row >= rows || column >= WIDTH) continue;
        Sums sums;
#pragma unroll
        for (int p = 0; p < PRODUCTS; p++) {
            sums.at[p] = 0;
#pragma unroll
            for (int other = 0; other < WARPS; other++)
                sums.at[p] += shared[(other * TG_ROWS + i / TG_COLUMNS) * TG_LINE + p * TG_COLUMNS + i % TG_COLUMNS];
        }
        y[row * WIDTH + column] = NARROW_Y(says_nothing(sums) ? one_element(TG_GIVEN, rows, row * WIDTH + column) :
                                                                ended(sums, row, column, TG_GIVEN));
    }
}
