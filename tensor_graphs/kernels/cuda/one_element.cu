/* Products element by element: where operands lie off their alignment, and what tiles say nothing of. What is read is not `__restrict__`
 * (numbers.cuh, after_those_before). Given by the text before: X, W, B, Y, WIDE_X, WIDE_W, WIDE_B, NARROW_Y, INNER (k), WIDTH (j), ACROSS
 * (1: w lies as [k][j], 0: as [j][k]), MATRICES (of y), MATRICES_X, MATRICES_W (that or 1), PARTS_X (3: floats that tiles multiply by
 * parts), BIAS and W_PREPARED where there are such. */
#include "numbers.cuh"
#ifdef W_PREPARED
#define TG_W_PARTS , const uint16_t * w_parts
#define TG_GIVEN_PARTS , w_parts
#else
#define TG_W_PARTS
#define TG_GIVEN_PARTS
#endif
#ifdef BIAS
#define TG_OPERANDS const X * x, const W * w, const B * bias TG_W_PARTS
#else
#define TG_OPERANDS const X * x, const W * w TG_W_PARTS
#endif

/* One element of y, in the order of all, by multiplications of floats. */
static __device__ __noinline__ float one_element(TG_OPERANDS, int64_t rows, int64_t at) {
    const int64_t row = at / WIDTH, column = at % WIDTH;
    const X *left = x + (MATRICES_X == 1 && MATRICES > 1 ? row % rows : row) * INNER;
    const W *right = w + (MATRICES_W == 1 ? 0 : row / rows * INNER * WIDTH) + (ACROSS ? column : column * INNER);
    float sum = 0;
    for (int64_t begin = 0; begin < INNER; begin += 32) {           /* in pieces: most roundings are small ones */
        float piece = 0;
        for (int64_t k = begin; k < INNER && k < begin + 32; k++)
            piece = fmaf(WIDE_X(left[k]), WIDE_W(right[ACROSS ? k * WIDTH : k]), piece);
        sum += piece;
    }
#ifdef BIAS
    sum += WIDE_B(bias[column]);
#endif
    return sum;
}
#ifdef BIAS
#define TG_GIVEN x, w, bias TG_GIVEN_PARTS
#else
#define TG_GIVEN x, w TG_GIVEN_PARTS
#endif

extern "C" __global__ void plain(Y *__restrict__ y, TG_OPERANDS, const int64_t *sizes) {
    after_those_before();
    const int64_t at = blockIdx.x * 256LL + threadIdx.x;
    if (at < MATRICES * sizes[0] * WIDTH) y[at] = NARROW_Y(one_element(TG_GIVEN, sizes[0], at));
}

/* What comes of parts of numbers that are not finite says nothing: it is made again. */
TG_INLINE bool says_nothing(float sum) { return PARTS_X == 3 && !(fabsf(sum) < INFINITY); }

