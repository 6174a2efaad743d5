/* any_product: y[b, r, j] = sum over k of x[b, r, k] w[b, k, j] (+ bias[j]) of numbers of any dtype and of any sizes, where no other
 * kernel for products takes them. A block of 256 threads computes a tile of SIDE by SIDE, a thread PER by PER of it, from DEPTH numbers
 * of k at a time in shared memory, while the next are under way; floats are added up in pieces of PIECE, so that most roundings are
 * small ones.
 * Given by the text before: X, W, B, Y (as stored), A (what is added up in), WIDE_X, WIDE_W, WIDE_B (an A of them), NARROW_Y, ACROSS
 * (1: w lies as [k][j], 0: as [j][k]), MATRICES_X, MATRICES_W (1: the same for every b), SIDE, DEPTH, BIAS where there is one. */
#define PIECE 256
#define THREADS 256
#define EACH (SIDE * DEPTH / THREADS)
#define PER (SIDE / 16)

#ifdef BIAS
#define OPERANDS const X *x, const W *w, const B *bias
#else
#define OPERANDS const X *x, const W *w
#endif

extern "C" __global__ void __launch_bounds__(THREADS) any_product(Y *__restrict__ y, OPERANDS, const int64_t *sizes) {
    __shared__ A left[DEPTH][SIDE + 1], right[DEPTH][SIDE + 1];
    const int64_t rows = sizes[0], columns = sizes[1], inner = sizes[2];
    const int64_t across = (columns + SIDE - 1) / SIDE, down = (rows + SIDE - 1) / SIDE;
    const int64_t matrix = blockIdx.x / (across * down);
    const int64_t row = blockIdx.x / across % down * SIDE, column = blockIdx.x % across * SIDE;
    const int of_row = threadIdx.x / 16 * PER, of_column = threadIdx.x % 16 * PER;
    A total[PER][PER] = {}, piece[PER][PER] = {}, of_x[EACH], of_w[EACH];
    after_those_before();
    x += MATRICES_X == 1 ? 0 : matrix * rows * inner;
    w += MATRICES_W == 1 ? 0 : matrix * inner * columns;
    auto load = [&](int64_t begin) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int at = threadIdx.x + i * THREADS;
            const int64_t r = row + at / DEPTH, k = begin + at % DEPTH;
            of_x[i] = r < rows && k < inner ? (A)WIDE_X(x[r * inner + k]) : (A)0;
            const int64_t j = column + (ACROSS ? at % SIDE : at / DEPTH), of_k = begin + (ACROSS ? at / SIDE : at % DEPTH);
            of_w[i] = j < columns && of_k < inner ? (A)WIDE_W(w[ACROSS ? of_k * columns + j : j * inner + of_k]) : (A)0;
        }
    };
    load(0);
    for (int64_t begin = 0; begin < inner; begin += DEPTH) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int at = threadIdx.x + i * THREADS;
            left[at % DEPTH][at / DEPTH] = of_x[i];
            if (ACROSS) right[at / SIDE][at % SIDE] = of_w[i];
            else right[at % DEPTH][at / DEPTH] = of_w[i];
        }
        __syncthreads();
        if (begin + DEPTH < inner) load(begin + DEPTH);
#pragma unroll
        for (int k = 0; k < DEPTH; k++)
            if (begin + k < inner)                                  /* what is padded is not in a sum: 0 · ∞ would be */
#pragma unroll
                for (int i = 0; i < PER; i++)
#pragma unroll
                    for (int j = 0; j < PER; j++) piece[i][j] += left[k][of_row + i] * right[k][of_column + j];
        __syncthreads();
        if ((begin + DEPTH) % PIECE == 0 || begin + DEPTH >= inner)
#pragma unroll
            for (int i = 0; i < PER; i++)
#pragma unroll
                for (int j = 0; j < PER; j++) total[i][j] += piece[i][j], piece[i][j] = 0;
    }
#pragma unroll
    for (int i = 0; i < PER; i++)
#pragma unroll
        for (int j = 0; j < PER; j++) {
            const int64_t r = row + of_row + i, c = column + of_column + j;
            if (r >= rows || c >= columns) continue;
#ifdef BIAS
            total[i][j] += WIDE_B(bias[c]);
#endif
            y[(matrix * rows + r) * columns + c] = NARROW_Y(total[i][j]);
        }
}
