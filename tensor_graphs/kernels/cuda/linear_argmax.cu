/* linear_argmax: for each row of x the largest of the sums over k of x[r, k] w[j, k], and the first j that has it, where w is long
 * and x has few rows: all of w is read once for every ROWS rows (few_rows), or for a single one (one_row). A warp has COLUMNS of
 * the rows of w at a time; its lanes share each of them in packs of 16 bytes. Packs of w are in registers before anything else is
 * waited for, AT_ONCE of each row: what computes x may still run by then. A single row of x stays in registers, if it is short.
 * Each block keeps its best, and best_of_row finds the row's among them. NaN is larger than all numbers.
 * Given by the text before: X, W, Y (how elements are stored), WIDE_X, WIDE_W (f32 of an element), NARROW_Y, PACK, PACK_X
 * (elements of w and of x that are loaded at once), COLUMNS, K, N, BLOCKS (of a row of y), RESIDENT (blocks of a multiprocessor, at
 * least). */
#define ROWS 8
#define WARPS 4
#define MOST 12                                                     /* packs of a lane; where they are not all, in even rounds */
#define TURNS ((K + 32 * PACK - 1) / (32 * PACK))
#define ROUNDS ((TURNS * COLUMNS + MOST - 1) / MOST)
#define AT_ONCE (TURNS * COLUMNS <= MOST ? TURNS : (TURNS + ROUNDS - 1) / ROUNDS)
#define HELD (TURNS * PACK * (int)sizeof(X) <= 128 ? TURNS : 1)     /* turns of a single row of x in registers, if not one */

typedef Pack<W, PACK> Taken[AT_ONCE][COLUMNS];
typedef Pack<X, PACK_X> Some[PACK / PACK_X];

/* The larger, NaN before all; of equal ones the first. */
TG_INLINE void take_better(float &top, int &at, float other, int place) {
    const bool better = other != other ? top == top || place < at : top == top && (other > top || (other == top && place < at));
    if (better) top = other, at = place;
}

/* Of each row of w that a warp has, what a turn reads. */
TG_INLINE void take(Pack<W, PACK> (&taken)[COLUMNS], const W *w, int column, int turn, int lane) {
    const int k = (turn * 32 + lane) * PACK;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++)
        if (k < K) taken[c] = pack_now<PACK>(w + (int64_t)(column + c < N ? column + c : N - 1) * K + k);
}

/* Of a row of x, what a turn multiplies. */
TG_INLINE void take_row(Some &some, const X *x, int64_t row, int turn, int lane) {
    const int k = (turn * 32 + lane) * PACK;
#pragma unroll
    for (int half = 0; half < PACK / PACK_X; half++)
        if (k < K) some[half] = pack_at<PACK_X>(x + row * K + k + half * PACK_X);
}

/* R rows of x, of which `here` are there, with the columns that a warp has; of w the first turns are there. What is multiplied makes
 * room for what comes after it, of these columns or of those from `next` on. */
template <int R> TG_INLINE void rows_of(float (&top)[R], int (&at)[R], const X *x, const W *w, int64_t row, int here, int column,
                                        int next, int lane, Taken &taken, const Some (&held)[HELD]) {
    float part[R][COLUMNS] = {};
#pragma unroll HELD
    for (int turn = 0; turn < TURNS; turn += AT_ONCE) {
#pragma unroll
        for (int t = 0; t < AT_ONCE; t++) {
            if (((turn + t) * 32 + lane) * PACK < K)
#pragma unroll
                for (int r = 0; r < R; r++) {
                    Some some;
                    if (R > 1 || HELD < TURNS) take_row(some, x, row + (r < here ? r : here - 1), turn + t, lane);
#pragma unroll
                    for (int e = 0; e < PACK; e++)
#pragma unroll
                        for (int c = 0; c < COLUMNS; c++) {
                            const Pack<X, PACK_X> *of_x = R > 1 || HELD < TURNS ? some : held[(turn + t) % HELD];
                            part[r][c] = fmaf(WIDE_X(of_x[e / PACK_X].at[e % PACK_X]), WIDE_W(taken[t][c].at[e]), part[r][c]);
                        }
                }
            if (turn + AT_ONCE < TURNS) take(taken[t], w, column, turn + AT_ONCE + t, lane);
            else if (next < N) take(taken[t], w, next, t, lane);
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            const float total = reduced<32>(part[r][c], Sum(), (float *)0);
            if (column + c < N) take_better(top[r], at[r], total, column + c);
        }
}

/* What a block does: up to R rows of x from `row` on. */
template <int R> TG_INLINE void some_rows(float *tops, int *places, const X *x, const W *w, int64_t row, int64_t rows) {
    const int lane = threadIdx.x % 32, here = (int)(rows - row < R ? rows - row : R);
    int column = (blockIdx.x % BLOCKS * WARPS + threadIdx.x / 32) * COLUMNS;
    Taken taken;
    if (column < N)
#pragma unroll
        for (int t = 0; t < AT_ONCE; t++) take(taken[t], w, column, t, lane);
    after_those_before();
    __shared__ float shared_top[WARPS][R];
    __shared__ int shared_at[WARPS][R];
    float top[R];
    int at[R];
    Some held[HELD];
    if (R == 1 && HELD == TURNS)
#pragma unroll
        for (int turn = 0; turn < HELD; turn++) take_row(held[turn], x, row, turn, lane);
#pragma unroll
    for (int r = 0; r < R; r++) top[r] = -INFINITY, at[r] = N;
    for (int next; column < N; column = next) {
        next = column + BLOCKS * WARPS * COLUMNS;
        rows_of<R>(top, at, x, w, row, here, column, next, lane, taken, held);
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
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) few_rows(Y *y, int *index, const X *x, const W *w, const int64_t *sizes,
                                                                  float *__restrict__ tops, int *__restrict__ places) {
    some_rows<ROWS>(tops, places, x, w, (int64_t)(blockIdx.x / BLOCKS) * ROWS, sizes[0]);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT) one_row(Y *y, int *index, const X *x, const W *w,
                                                                           const int64_t *sizes, float *__restrict__ tops,
                                                                           int *__restrict__ places) {
    some_rows<1>(tops, places, x, w, 0, 1);
}

extern "C" __global__ void __launch_bounds__(256) best_of_row(Y *__restrict__ y, int *__restrict__ index, const X *x, const W *w,
                                                               const int64_t *sizes, const float *tops, const int *places) {
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
