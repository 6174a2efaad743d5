/* few_rows: y[r, j] = sum over k of x[r, k] w[j, k] (+ bias[j]) where w is long and x has few rows: all of w is read once for every
 * ROWS rows; one_row is the same for a single one. A warp has COLUMNS of the rows of w; its lanes share each of them in packs of 16
 * bytes. Packs of w are in registers before anything else is waited for, AT_ONCE of each row: what computes x may still run by then.
 * With BEST, not y but for each row its largest element and the first j that has it: each block keeps its best, and best_of_row
 * finds the row's among them.
 * Given by the text before: X, W, B, Y (how elements are stored), WIDE_X, WIDE_W, WIDE_B (f32 of an element), NARROW_Y, PACK, PACK_X
 * (elements of w and of x that are loaded at once), COLUMNS, K, N, BLOCKS (of a row of y), RESIDENT (blocks of a multiprocessor, at
 * least); BIAS where there is one. Kernels of a text have few instructions each, as a step meets them cold. */
#define ROWS 8
#define WARPS 4
#define MOST 12                                                     /* packs of a lane; where they are not all, in even rounds */
#define TURNS ((K + 32 * PACK - 1) / (32 * PACK))
#define NEARBY (K < 4096 / (int)sizeof(W) ? K : 4096 / (int)sizeof(W))      /* of a row: more of all rows is pushed out before it is read */
#define ROUNDS ((TURNS * COLUMNS + MOST - 1) / MOST)
#define AT_ONCE (TURNS * COLUMNS <= MOST ? TURNS : (TURNS + ROUNDS - 1) / ROUNDS)
#ifdef BEST
#define OUTPUTS float *__restrict__ top, int *__restrict__ at
#define RESULTS float *__restrict__ tops, int *__restrict__ places
#define MADE tops, places
#define FIRST Y *__restrict__ y, int *__restrict__ index
#define LAST const int64_t *sizes, float *__restrict__ tops, int *__restrict__ places
#else
#define OUTPUTS Y *__restrict__ y
#define RESULTS OUTPUTS
#define MADE y
#define FIRST OUTPUTS
#define LAST const int64_t *sizes
#endif
#ifdef BIAS
#define OPERANDS const X *x, const W *w, const B *bias
#else
#define OPERANDS const X *x, const W *w
#endif

typedef Pack<W, PACK> Taken[AT_ONCE][COLUMNS];

#ifdef BEST
/* The larger, NaN before all; of equal ones the first. */
TG_INLINE void take_better(float &top, int &at, float other, int place) {
    const bool better = other != other ? top == top || place < at : top == top && (other > top || (other == top && place < at));
    if (better) top = other, at = place;
}
#endif

/* Of each row of w that a warp has, what a turn reads. */
TG_INLINE void take(Pack<W, PACK> (&taken)[COLUMNS], const W *w, int column, int turn, int lane) {
    const int k = (turn * 32 + lane) * PACK;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++)
        if (k < K) taken[c] = pack_now<PACK>(w + (int64_t)(column + c < N ? column + c : N - 1) * K + k);
}

/* R rows of x, of which `here` are there, with the columns that a warp has; of w the first turns are there. What is multiplied makes
 * room for what comes after it, of these columns or of those from `next` on. */
template <int R> TG_INLINE void rows_of(OUTPUTS, const X *x, const W *w, const B *bias,
                                        int64_t row, int here, int column, int next, int lane, Taken &taken) {
    float part[R][COLUMNS];
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) part[r][c] = 0;
    for (int turn = 0; turn < TURNS; turn += AT_ONCE) {
#pragma unroll
        for (int t = 0; t < AT_ONCE; t++) {
            const int k = ((turn + t) * 32 + lane) * PACK;
            if (k < K)
#pragma unroll
                for (int r = 0; r < R; r++)
#pragma unroll
                    for (int half = 0; half < PACK; half += PACK_X) {
                        const Pack<X, PACK_X> of_x = pack_at<PACK_X>(x + (row + (r < here ? r : here - 1)) * K + k + half);
#pragma unroll
                        for (int e = 0; e < PACK_X; e++)
#pragma unroll
                            for (int c = 0; c < COLUMNS; c++)
                                part[r][c] = fmaf(WIDE_X(of_x.at[e]), WIDE_W(taken[t][c].at[half + e]), part[r][c]);
                    }
            if (turn + AT_ONCE < TURNS) take(taken[t], w, column, turn + AT_ONCE + t, lane);
            else if (next < N) take(taken[t], w, next, t, lane);
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            float total = reduced<32>(part[r][c], Sum(), (float *)0);
            if (column + c < N) {
#ifdef BIAS
                total += WIDE_B(bias[column + c]);
#endif
#ifdef BEST
                take_better(top[r], at[r], total, column + c);
#else
                if (lane == 0 && r < here) y[(row + r) * N + column + c] = NARROW_Y(total);
#endif
            }
        }
    }
}

/* What a block does: up to R rows of x from `row` on. */
template <int R> TG_INLINE void some_rows(RESULTS, const X *x, const W *w, const B *bias,
                                          int64_t row, int64_t rows) {
    const int lane = threadIdx.x % 32, here = (int)(rows - row < R ? rows - row : R);
    int column = (blockIdx.x % BLOCKS * WARPS + threadIdx.x / 32) * COLUMNS;
    Taken taken;
    if (column < N) {
#pragma unroll
        for (int t = 0; t < AT_ONCE; t++) take(taken[t], w, column, t, lane);
        for (int c = 0; c < COLUMNS; c++)
            for (int k = AT_ONCE * 32 * PACK + lane * (128 / (int)sizeof(W)); k < NEARBY; k += 32 * (128 / (int)sizeof(W)))
                if (column + c < N) bring(w + (int64_t)(column + c) * K + k);
    }
    after_those_before();
#ifdef BEST
    __shared__ float shared_top[WARPS][R];
    __shared__ int shared_at[WARPS][R];
    float top[R];
    int at[R];
#pragma unroll
    for (int r = 0; r < R; r++) top[r] = -INFINITY, at[r] = N;
    for (int next; column < N; column = next) {
        next = column + BLOCKS * WARPS * COLUMNS;
        rows_of<R>(top, at, x, w, bias, row, here, column, next, lane, taken);
    }
#pragma unroll
    for (int r = 0; r < R; r++)
        if (lane == 0) shared_top[threadIdx.x / 32][r] = top[r], shared_at[threadIdx.x / 32][r] = at[r];
    __syncthreads();
    if (threadIdx.x < here) {
        float best = shared_top[0][threadIdx.x];
        int place = shared_at[0][threadIdx.x];
        for (int warp = 1; warp < WARPS; warp++) take_better(best, place, shared_top[warp][threadIdx.x], shared_at[warp][threadIdx.x]);
        tops[(row + threadIdx.x) * BLOCKS + blockIdx.x % BLOCKS] = best;
        places[(row + threadIdx.x) * BLOCKS + blockIdx.x % BLOCKS] = place;
    }
#else
    if (column < N) rows_of<R>(y, x, w, bias, row, here, column, N, lane, taken);
#endif
}

#ifndef BIAS
#define bias ((const B *)0)
#endif
extern "C" __global__ void __launch_bounds__(32 * WARPS) few_rows(FIRST, OPERANDS, LAST) {
    some_rows<ROWS>(MADE, x, w, bias, (int64_t)(blockIdx.x / BLOCKS) * ROWS, sizes[0]);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT) one_row(FIRST, OPERANDS, LAST) {
    some_rows<1>(MADE, x, w, bias, 0, 1);
}

#ifdef BEST
extern "C" __global__ void __launch_bounds__(256) best_of_row(Y *__restrict__ y, int *__restrict__ index, const X *x,
                                                               const W *w,
                                                               const int64_t *sizes, const float *tops,
                                                               const int *places) {
    __shared__ float shared_top[256];
    __shared__ int shared_at[256];
    const int64_t row = blockIdx.x;
    after_those_before();
    float top = -INFINITY;
    int at = N;
#pragma unroll 4
    for (int i = threadIdx.x; i < BLOCKS; i += 256) take_better(top, at, tops[row * BLOCKS + i], places[row * BLOCKS + i]);
    shared_top[threadIdx.x] = top, shared_at[threadIdx.x] = at;
    for (int step = 128; step > 0; step /= 2) {
        __syncthreads();
        if (threadIdx.x < step) {
            take_better(top, at, shared_top[threadIdx.x + step], shared_at[threadIdx.x + step]);
            shared_top[threadIdx.x] = top, shared_at[threadIdx.x] = at;
        }
    }
    if (threadIdx.x == 0) y[row] = NARROW_Y(top), index[row] = at;
}
#endif
