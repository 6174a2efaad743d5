/* few_rows: y[r, j] = sum over k of x[r, k] w[j, k] (+ bias[j]) where w is long and x has few rows: all of w is read once for every
 * ROWS rows. A warp has COLUMNS of the rows of w; its lanes share each of them in packs of 16 bytes. With BEST, not y but for each row
 * its largest element and the first j that has it: each warp keeps its best, and best_of_row finds the row's among them.
 * Given by the text before: X, W, B, Y (how elements are stored), WIDE_X, WIDE_W, WIDE_B (f32 of an element), NARROW_Y, PACK (elements
 * of w in 16 bytes), COLUMNS, K, N; BIAS where there is one. */
#define ROWS 8
#define WARPS 4
#ifdef BEST
#define OUTPUTS float *__restrict__ tops, int *__restrict__ places
#define GIVEN tops, places
#else
#define OUTPUTS Y *__restrict__ y
#define GIVEN y
#endif

#ifdef BEST
#define WARPS_OF_ROW ((N + COLUMNS - 1) / COLUMNS)
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
#pragma unroll 4
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
#ifdef BEST
        float top = -INFINITY;
        int at = N;
#endif
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            float total = reduced<32>(part[r][c], Sum(), (float *)0);
            if (column + c < N) {
#ifdef BIAS
                total += WIDE_B(bias[column + c]);
#endif
#ifdef BEST
                take_better(top, at, total, column + c);
#else
                if (lane == 0) y[(row + r) * N + column + c] = NARROW_Y(total);
#endif
            }
        }
#ifdef BEST
        if (lane == 0) tops[(row + r) * WARPS_OF_ROW + column / COLUMNS] = top, places[(row + r) * WARPS_OF_ROW + column / COLUMNS] = at;
#endif
    }
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
    const int blocks = (N + WARPS * COLUMNS - 1) / (WARPS * COLUMNS);
    const int lane = threadIdx.x % 32, column = (blockIdx.x % blocks * WARPS + threadIdx.x / 32) * COLUMNS;
    const int64_t rows = sizes[0];
    int64_t row = (int64_t)(blockIdx.x / blocks) * ROWS;
    const int64_t end = row + ROWS < rows ? row + ROWS : rows;
    if (column >= N) return;
    for (; row + 8 <= end; row += 8) rows_of<8>(GIVEN, x, w, bias, row, column, lane);
    for (; row + 4 <= end; row += 4) rows_of<4>(GIVEN, x, w, bias, row, column, lane);
    for (; row + 2 <= end; row += 2) rows_of<2>(GIVEN, x, w, bias, row, column, lane);
    for (; row < end; row += 1) rows_of<1>(GIVEN, x, w, bias, row, column, lane);
}

#ifdef BEST
extern "C" __global__ void __launch_bounds__(1024) best_of_row(Y *__restrict__ y, int *__restrict__ index, const X *__restrict__ x,
                                                               const W *__restrict__ w,
                                                               const int64_t *__restrict__ sizes, const float *__restrict__ tops,
                                                               const int *__restrict__ places) {
    __shared__ float shared_top[1024];
    __shared__ int shared_at[1024];
    const int64_t row = blockIdx.x;
    float top = -INFINITY;
    int at = N;
#pragma unroll 4
    for (int i = threadIdx.x; i < WARPS_OF_ROW; i += 1024) take_better(top, at, tops[row * WARPS_OF_ROW + i], places[row * WARPS_OF_ROW + i]);
    shared_top[threadIdx.x] = top, shared_at[threadIdx.x] = at;
    for (int step = 512; step > 0; step /= 2) {
        __syncthreads();
        if (threadIdx.x < step) {
            take_better(top, at, shared_top[threadIdx.x + step], shared_at[threadIdx.x + step]);
            shared_top[threadIdx.x] = top, shared_at[threadIdx.x] = at;
        }
    }
    if (threadIdx.x == 0) y[row] = NARROW_Y(top), index[row] = at;
}
#endif
