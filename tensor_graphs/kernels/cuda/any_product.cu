/* any_product: y[b, r, j] = sum over k of x[b, r, k] w[b, k, j] (+ bias[j]) of numbers of any dtype and of any sizes, where no other
 * kernel for products takes them. A block of 256 threads computes a tile of SIDE by SIDE, a thread PER by PER of it, from DEPTH numbers
 * of k at a time in shared memory, while the next are under way; floats are added up in pieces of PIECE, so that most roundings are
 * small ones.
 * Given by the text before: X, W, B, Y (as stored), A (what is added up in), WIDE_X, WIDE_W, WIDE_B (an A of them), NARROW_Y, ACROSS
 * (1: w lies as [k][j], 0: as [j][k]), MATRICES_X, MATRICES_W (1: the same for every b), SIDE, DEPTH, BIAS where there is one; ROWS,
 * COLUMNS, INNER (numbers, or what `sizes` holds); PACK_X, PACK_W (elements that are loaded at once). */
#define PIECE 256
#define THREADS 256
#define EACH (SIDE * DEPTH / THREADS)
#define PER (SIDE / 16)
#define RUN 4                                                       /* numbers of k that are read at once */

#ifdef BIAS
#define OPERANDS const X *x, const W *w, const B *bias
#else
#define OPERANDS const X *x, const W *w
#endif

/* LENGTH numbers of each of some lines of a matrix, as they lie; behind the ends zeros. A line is a row of x; a column of w, or, where
 * w lies across, a row of it. */
template <int PACK, int LENGTH, class T> struct Lines {
    static constexpr int PACKS = LENGTH / PACK;                     /* of a line */
    Pack<T, PACK> held[EACH / PACK];
    TG_INLINE void load(const T *from, int64_t first, int64_t lines, int64_t begin, int64_t numbers) {
#pragma unroll
        for (int i = 0; i < EACH / PACK; i++) {
            const int at = threadIdx.x + i * THREADS;
            const int64_t line = first + at / PACKS, k = begin + at % PACKS * PACK;
            held[i] = line < lines && k < numbers ? pack_at<PACK>(from + line * numbers + k) : Pack<T, PACK>{};
        }
    }
    template <int COUNT, class Wide> TG_INLINE void store(A (&into)[COUNT][LENGTH + RUN], const Wide &wide) const {
#pragma unroll
        for (int i = 0; i < EACH / PACK; i++) {
            const int at = threadIdx.x + i * THREADS;
#pragma unroll
            for (int e = 0; e < PACK; e++) into[at / PACKS][at % PACKS * PACK + e] = wide(held[i].at[e]);
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS) any_product(Y *__restrict__ y, OPERANDS, const int64_t *sizes) {
    __shared__ __align__(32) A left[SIDE][DEPTH + RUN];
    const int64_t rows = ROWS, columns = COLUMNS, inner = INNER;
    const int64_t across = (columns + SIDE - 1) / SIDE, down = (rows + SIDE - 1) / SIDE;
    const int64_t matrix = blockIdx.x / (across * down);
    const int64_t row = blockIdx.x / across % down * SIDE, column = blockIdx.x % across * SIDE;
    const int of_row = threadIdx.x / 16, of_column = threadIdx.x % 16;
    A total[PER][PER] = {}, piece[PER][PER] = {};
    Lines<PACK_X, DEPTH, X> of_x;
    const auto wide_x = [](X value) { return (A)WIDE_X(value); };
    const auto wide_w = [](W value) { return (A)WIDE_W(value); };
#if ACROSS
    __shared__ __align__(32) A right[DEPTH][SIDE + RUN];            /* neighbouring columns are one thread's: read at once */
    Lines<PACK_W, SIDE, W> of_w;
    const auto load_w = [&](int64_t begin) { of_w.load(w, begin, inner, column, columns); };
#define COLUMN(j) (of_column * PER + (j))
#else
    __shared__ __align__(32) A right[SIDE][DEPTH + RUN];            /* columns of a thread lie apart: neighbours read other banks */
    Lines<PACK_W, DEPTH, W> of_w;
    const auto load_w = [&](int64_t begin) { of_w.load(w, column, columns, begin, inner); };
#define COLUMN(j) (of_column + 16 * (j))
#endif
    after_those_before();
    x += MATRICES_X == 1 ? 0 : matrix * rows * inner;
    w += MATRICES_W == 1 ? 0 : matrix * inner * columns;
    of_x.load(x, row, rows, 0, inner);
    load_w(0);
    for (int64_t begin = 0; begin < inner; begin += DEPTH) {
        of_x.store(left, wide_x);
        of_w.store(right, wide_w);
        __syncthreads();
        if (begin + DEPTH < inner) {
            of_x.load(x, row, rows, begin + DEPTH, inner);
            load_w(begin + DEPTH);
        }
#pragma unroll
        for (int k = 0; k < DEPTH; k += RUN) {
            if (begin + k >= inner) continue;                       /* behind the end both are 0, and add nothing */
            Pack<A, RUN> those[PER], these[PER];
#pragma unroll
            for (int i = 0; i < PER; i++) those[i] = pack_at<RUN>(&left[of_row + 16 * i][k]);
#if ACROSS
#pragma unroll
            for (int e = 0; e < RUN; e++) {
                const Pack<A, PER> some = pack_at<PER>(&right[k + e][COLUMN(0)]);
#pragma unroll
                for (int j = 0; j < PER; j++) these[j].at[e] = some.at[j];
            }
#else
#pragma unroll
            for (int j = 0; j < PER; j++) these[j] = pack_at<RUN>(&right[COLUMN(j)][k]);
#endif
#pragma unroll
            for (int e = 0; e < RUN; e++)
#pragma unroll
                for (int i = 0; i < PER; i++)
#pragma unroll
                    for (int j = 0; j < PER; j++) piece[i][j] += those[i].at[e] * these[j].at[e];
        }
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
            const int64_t r = row + of_row + 16 * i, c = column + COLUMN(j);
            if (r >= rows || c >= columns) continue;
#ifdef BIAS
            total[i][j] += WIDE_B(bias[c]);
#endif
            y[(matrix * rows + r) * columns + c] = NARROW_Y(total[i][j]);
        }
}
