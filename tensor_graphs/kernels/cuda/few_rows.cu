/* few_rows: y[r, j] = sum over k of x[r, k] w[j, k] (+ bias[j]) where w is long and x has few rows: all of w is read once for every
 * ROWS rows. A warp has COLUMNS of the rows of w; its lanes share each of them in packs of 16 bytes. With BEST, not y but for each row
 * its largest element and the first j that has it: each block keeps its best, and best_of_row finds the row's among them.
 * Given by the text before: X, W, B, Y (how elements are stored), WIDE_X, WIDE_W, WIDE_B (f32 of an element), NARROW_Y, PACK (elements
 * of w in 16 bytes), COLUMNS, K, N, BLOCKS (of a row of y); BIAS where there is
 * one. */
#define ROWS 8
#define WARPS 4
#ifdef BEST
#define OUTPUTS float *__restrict__ top, int *__restrict__ at
#define MADE tops, places
#else
#define OUTPUTS Y *__restrict__ y
#define MADE y
#endif

#ifdef BEST
/* The larger, NaN before all; of equal ones the first. */
TG_INLINE void take_better(float &top, int &at, float other, int place) {
    const bool better = other != other ? top == top || place < at : top == top && (other > top || (other == top && place < at));
    if (better) top = other, at = place;
}
#endif

template <int R> TG_INLINE void rows_of(OUTPUTS, const X *__restrict__ x, const W *__restrict__ w, const B *__restrict__ bias,
                                        int64_t row, int column, int lane) {
    float part[R][COLUMNS];
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) part[r][c] = 0;
#pragma unroll (K <= 256 * PACK ? 8 : 4)
    for (int k = lane * PACK; k < K; k += 32 * PACK) {
        Pack<W, PACK> taken[COLUMNS];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            const int j = column + c < N ? column + c : N - 1;
            taken[c] = pack_at<PACK>(w + (int64_t)j * K + k);
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
#pragma unroll
            for (int half = 0; half < PACK; half += PACK_X) {
                const Pack<X, PACK_X> of_x = pack_at<PACK_X>(x + (row + r) * K + k + half);
#pragma unroll
                for (int e = 0; e < PACK_X; e++)
#pragma unroll
                    for (int c = 0; c < COLUMNS; c++)
                        part[r][c] = fmaf(WIDE_X(of_x.at[e]), WIDE_W(taken[c].at[half + e]), part[r][c]);
            }
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
                if (lane == 0) y[(row + r) * N + column + c] = NARROW_Y(total);
#endif
            }
        }
    }
}

/* R rows of x with all columns that a warp has. */
template <int R> TG_INLINE void some_rows(
#ifdef BEST
    float *__restrict__ tops, int *__restrict__ places,
#else
    Y *__restrict__ y,
#endif
    const X *__restrict__ x, const W *__restrict__ w, const B *__restrict__ bias, int64_t row, int column, int lane) {
#ifdef BEST
    __shared__ float shared_top[WARPS][R];
    __shared__ int shared_at[WARPS][R];
    float top[R];
    int at[R];
#pragma unroll
    for (int r = 0; r < R; r++) top[r] = -INFINITY, at[r] = N;
    for (; column < N; column += BLOCKS * WARPS * COLUMNS) rows_of<R>(top, at, x, w, bias, row, column, lane);
    __syncthreads();                                                /* the rows before these have been read */
#pragma unroll
    for (int r = 0; r < R; r++)
        if (lane == 0) shared_top[threadIdx.x / 32][r] = top[r], shared_at[threadIdx.x / 32][r] = at[r];
    __syncthreads();
    if (threadIdx.x < R) {
        float best = shared_top[0][threadIdx.x];
        int place = shared_at[0][threadIdx.x];
        for (int warp = 1; warp < WARPS; warp++) take_better(best, place, shared_top[warp][threadIdx.x], shared_at[warp][threadIdx.x]);
        tops[(row + threadIdx.x) * BLOCKS + blockIdx.x % BLOCKS] = best;
        places[(row + threadIdx.x) * BLOCKS + blockIdx.x % BLOCKS] = place;
    }
#else
    if (column < N) rows_of<R>(y, x, w, bias, row, column, lane);
#endif
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) few_rows(Y *__restrict__ y,
#ifdef BEST
                                                                  int *__restrict__ index,
#endif
                                                                  const X *__restrict__ x, const W *__restrict__ w,
#ifdef BIAS
                                                                  const B *__restrict__ bias,
#endif
                                                                  const int64_t *__restrict__ sizes
#ifdef BEST
                                                                  , float *__restrict__ tops, int *__restrict__ places
#endif
) {
#ifndef BIAS
    const B *bias = 0;
#endif
    const int lane = threadIdx.x % 32, column = (blockIdx.x % BLOCKS * WARPS + threadIdx.x / 32) * COLUMNS;
    const int64_t rows = sizes[0];
    int64_t row = (int64_t)(blockIdx.x / BLOCKS) * ROWS;
    const int64_t end = row + ROWS < rows ? row + ROWS : rows;
    if (column < N) {
        const int lines = (K * (int)sizeof(W) + 127) / 128;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++)
            for (int i = lane; i < lines; i += 32)
                if (column + c < N) bring((const char *)(w + (int64_t)(column + c) * K) + i * 128);
    }
    after_those_before();
    for (; row + 8 <= end; row += 8) some_rows<8>(MADE, x, w, bias, row, column, lane);
    for (; row + 4 <= end; row += 4) some_rows<4>(MADE, x, w, bias, row, column, lane);
    for (; row + 2 <= end; row += 2) some_rows<2>(MADE, x, w, bias, row, column, lane);
    for (; row < end; row += 1) some_rows<1>(MADE, x, w, bias, row, column, lane);
}

#ifdef BEST
extern "C" __global__ void __launch_bounds__(256) best_of_row(Y *__restrict__ y, int *__restrict__ index, const X *__restrict__ x,
                                                               const W *__restrict__ w,
                                                               const int64_t *__restrict__ sizes, const float *__restrict__ tops,
                                                               const int *__restrict__ places) {
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
