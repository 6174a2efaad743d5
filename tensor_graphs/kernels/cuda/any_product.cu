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

/* Of rows of a matrix (columns of w, where it lies so) DEPTH numbers each, as they lie; behind the end zeros. */
template <int PACK, class T> struct Lines {
    Pack<T, PACK> held[EACH / PACK];
    TG_INLINE void load(const T *from, int64_t first, int64_t lines, int64_t begin, int64_t inner) {
#pragma unroll
        for (int i = 0; i < EACH / PACK; i++) {
            const int at = threadIdx.x + i * THREADS;
            const int64_t line = first + at / (DEPTH / PACK), k = begin + at % (DEPTH / PACK) * PACK;
            held[i] = line < lines && k < inner ? pack_at<PACK>(from + line * inner + k) : Pack<T, PACK>{};
        }
    }
    template <class Wide> TG_INLINE void store(A (&into)[SIDE][DEPTH + RUN], const Wide &wide) const {
#pragma unroll
        for (int i = 0; i < EACH / PACK; i++) {
            const int at = threadIdx.x + i * THREADS;
#pragma unroll
            for (int e = 0; e < PACK; e++) into[at / (DEPTH / PACK)][at % (DEPTH / PACK) * PACK + e] = wide(held[i].at[e]);
        }
    }
};
#if ACROSS
/* Of DEPTH rows of w SIDE numbers each. */
struct Across {
    Pack<W, PACK_W> held[EACH / PACK_W];
    TG_INLINE void load(const W *from, int64_t first, int64_t columns, int64_t begin, int64_t inner) {
#pragma unroll
        for (int i = 0; i < EACH / PACK_W; i++) {
            const int at = threadIdx.x + i * THREADS;
            const int64_t j = first + at % (SIDE / PACK_W) * PACK_W, k = begin + at / (SIDE / PACK_W);
            held[i] = j < columns && k < inner ? pack_at<PACK_W>(from + k * columns + j) : Pack<W, PACK_W>{};
        }
    }
    template <class Wide> TG_INLINE void store(A (&into)[DEPTH][SIDE + RUN], const Wide &wide) const {
#pragma unroll
        for (int i = 0; i < EACH / PACK_W; i++) {
            const int at = threadIdx.x + i * THREADS;
#pragma unroll
            for (int e = 0; e < PACK_W; e++) into[at / (SIDE / PACK_W)][at % (SIDE / PACK_W) * PACK_W + e] = wide(held[i].at[e]);
        }
    }
};
#endif

extern "C" __global__ void __launch_bounds__(THREADS) any_product(Y *__restrict__ y, OPERANDS, const int64_t *sizes) {
    __shared__ __align__(32) A left[SIDE][DEPTH + RUN];
    const int64_t rows = ROWS, columns = COLUMNS, inner = INNER;
    const int64_t across = (columns + SIDE - 1) / SIDE, down = (rows + SIDE - 1) / SIDE;
    const int64_t matrix = blockIdx.x / (across * down);
    const int64_t row = blockIdx.x / across % down * SIDE, column = blockIdx.x % across * SIDE;
    const int of_row = threadIdx.x / 16, of_column = threadIdx.x % 16;
    A total[PER][PER] = {}, piece[PER][PER] = {};
    Lines<PACK_X, X> of_x;
    const auto wide_x = [](X value) { return (A)WIDE_X(value); };
    const auto wide_w = [](W value) { return (A)WIDE_W(value); };
#if ACROSS
    __shared__ __align__(32) A right[DEPTH][SIDE + RUN];            /* neighbouring columns are one thread's: read at once */
    Across of_w;
#define COLUMN(j) (of_column * PER + (j))
#else
    __shared__ __align__(32) A right[SIDE][DEPTH + RUN];            /* columns of a thread lie apart: neighbours read other banks */
    Lines<PACK_W, W> of_w;
#define COLUMN(j) (of_column + 16 * (j))
#endif
    after_those_before();
    x += MATRICES_X == 1 ? 0 : matrix * rows * inner;
    w += MATRICES_W == 1 ? 0 : matrix * inner * columns;
    of_x.load(x, row, rows, 0, inner);
    of_w.load(w, column, columns, 0, inner);
    for (int64_t begin = 0; begin < inner; begin += DEPTH) {
        of_x.store(left, wide_x);
        of_w.store(right, wide_w);
        __syncthreads();
        if (begin + DEPTH < inner) {
            of_x.load(x, row, rows, begin + DEPTH, inner);
            of_w.load(w, column, columns, begin + DEPTH, inner);
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
