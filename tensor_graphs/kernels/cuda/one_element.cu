/* Products element by element: where operands lie off their alignment, and what tiles say nothing of. Given by the text before: X, W, B,
 * Y, WIDE_X, WIDE_W, WIDE_B, NARROW_Y; PARTS_X (above 1: floats that tiles multiply by parts), ROUNDED where floats are rounded to TF32;
 * TG_OPERANDS, TG_GIVEN, TG_X, TG_W(number) and `ended` (matrix_products.printed_operands); what is read is not `__restrict__`
 * (numbers.cuh, after_those_before); INNER (k), WIDTH (j), ACROSS (1: w lies as [k][j], 0: as [j][k]), MATRICES (of y), MATRICES_X, MATRICES_W (that
 * or 1). */

/* One element of y, in the order of all, by multiplications of floats. */
static __device__ __noinline__ float one_element(TG_OPERANDS, int64_t rows, int64_t at) {
    const int64_t row = at / WIDTH, column = at % WIDTH;
    const X *left = TG_X + (MATRICES_X == 1 && MATRICES > 1 ? row % rows : row) * INNER;
    Sums sums;
#pragma unroll
    for (int p = 0; p < PRODUCTS; p++) {
        const W *right = TG_W(p) + (MATRICES_W == 1 ? 0 : row / rows * INNER * WIDTH) + (ACROSS ? column : column * INNER);
        sums.at[p] = 0;
        for (int64_t begin = 0; begin < INNER; begin += 32) {       /* in pieces: most roundings are small ones */
            float piece = 0;
            for (int64_t k = begin; k < INNER && k < begin + 32; k++)
                piece = fmaf(WIDE_X(left[k]), WIDE_W(right[ACROSS ? k * WIDTH : k]), piece);
            sums.at[p] += piece;
        }
    }
    return ended(sums, row, column, TG_GIVEN);
}
TG_INLINE int64_t elements_of(int64_t rows) { return MATRICES * rows * WIDTH; }
