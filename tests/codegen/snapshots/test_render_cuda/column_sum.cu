/* nest over _r1p in 0..64
 *     y0p[_j0 + 4096*_r1p] = sum over _r1q in 0..128 of x0[_j0 + 524288*_r1p + 4096*_r1q]    over _j0 in 0..4096
 * nest over nothing
 *     y0[_j0] = sum over _r1t in 0..64 of y0p[_j0 + 4096*_r1t]    over _j0 in 0..4096 */
#define NARROW
#include "numbers.cuh"

typedef int index_t;

extern "C" __global__ void __launch_bounds__(256) nest0(uint16_t *__restrict__ y0, const uint16_t *x0, float *y0p) {
    after_those_before();
    /* sum, in parts */
    __shared__ float tile[8][256];
    const index_t blocks = 16, turn = (index_t)blockIdx.x / blocks;
    const int column = threadIdx.x % 32, row = threadIdx.x / 32;
    const index_t _j0 = ((index_t)blockIdx.x % blocks * 32 + column) * 8;
    const index_t _r1p = turn;
    float part[8];
    #pragma unroll
    for (int lane = 0; lane < 8; lane++) part[lane] = 0;
    if (_j0 < 4096) {
        #pragma unroll 4
        for (index_t _r1q = row; _r1q < 128; _r1q += 8) {
            const Pack<uint16_t, 8> p1 = pack_at<8>(x0 + (_j0 + 524288 * _r1p + 4096 * _r1q));
            #pragma unroll
            for (int lane = 0; lane < 8; lane++) {
                const index_t first__j0 = _j0;
                {
                    const index_t _j0 = first__j0 + lane;
                    const float v1 = bf16_to_f32(p1.at[lane]);
                    part[lane] = Sum()(part[lane], (float)v1);
                }
            }
        }
    }
    #pragma unroll
    for (int lane = 0; lane < 8; lane++) tile[row][lane * 32 + column] = part[lane];
    __syncthreads();
    if (row == 0 && _j0 < 4096) {
        #pragma unroll
        for (int lane = 0; lane < 8; lane++) {
            const index_t first__j0 = _j0;
            {
                const index_t _j0 = first__j0 + lane;
                float total = tile[0][lane * 32 + column];
                #pragma unroll
                for (int each = 1; each < 8; each++) total = Sum()(total, tile[each][lane * 32 + column]);
                y0p[(_j0 + 4096 * _r1p)] = total;
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) nest1(uint16_t *__restrict__ y0, const uint16_t *x0, float *y0p) {
    after_those_before();
    /* sum of the parts */
    __shared__ float tile[8][128];
    const index_t blocks = 32, turn = (index_t)blockIdx.x / blocks;
    const int column = threadIdx.x % 32, row = threadIdx.x / 32;
    const index_t _j0 = ((index_t)blockIdx.x % blocks * 32 + column) * 4;
    float part[4];
    #pragma unroll
    for (int lane = 0; lane < 4; lane++) part[lane] = 0;
    if (_j0 < 4096) {
        #pragma unroll 4
        for (index_t _r1t = row; _r1t < 64; _r1t += 8) {
            const Pack<float, 4> p2 = pack_at<4>(y0p + (_j0 + 4096 * _r1t));
            #pragma unroll
            for (int lane = 0; lane < 4; lane++) {
                const index_t first__j0 = _j0;
                {
                    const index_t _j0 = first__j0 + lane;
                    const float v2 = p2.at[lane];
                    part[lane] = Sum()(part[lane], (float)v2);
                }
            }
        }
    }
    #pragma unroll
    for (int lane = 0; lane < 4; lane++) tile[row][lane * 32 + column] = part[lane];
    __syncthreads();
    if (row == 0 && _j0 < 4096) {
        #pragma unroll
        for (int lane = 0; lane < 4; lane++) {
            const index_t first__j0 = _j0;
            {
                const index_t _j0 = first__j0 + lane;
                float total = tile[0][lane * 32 + column];
                #pragma unroll
                for (int each = 1; each < 8; each++) total = Sum()(total, tile[each][lane * 32 + column]);
                y0[_j0] = bf16_of_f32(total);
            }
        }
    }
}
