/* nest over _r1p in 0..16
 *     y0p[_j0 + 4096*_r1p] = sum over _r1q in 0..512 of x0[_j0 + 2097152*_r1p + 4096*_r1q]    over _j0 in 0..4096
 * nest over nothing
 *     y0[_j0] = sum over _r1t in 0..16 of y0p[_j0 + 4096*_r1t]    over _j0 in 0..4096 */
#define NARROW
#include "numbers.cuh"

typedef int index_t;

extern "C" __global__ void __launch_bounds__(512) nest0(uint16_t *__restrict__ y0, const uint16_t *x0, float *y0p) {
    after_those_before();
    /* sum, in parts */
    extern __shared__ __align__(16) char rows[];
    float (*const tile)[288] = (float (*)[288])rows;
    const index_t blocks = 16, turn = (index_t)blockIdx.x / blocks;
    const int column = threadIdx.x % 32, row = threadIdx.x / 32;
    const index_t _j0 = ((index_t)blockIdx.x % blocks * 32 + column) * 8;
    const index_t _r1p = turn;
    float part[8];
    #pragma unroll
    for (int lane = 0; lane < 8; lane++) part[lane] = 0;
    if (_j0 < 4096) {
        #pragma unroll 16
        for (index_t _r1q = row; _r1q < 512; _r1q += 16) {
            const Pack<uint16_t, 8> p1 = pack_at<8>(x0 + (_j0 + 2097152 * _r1p + 4096 * _r1q));
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
    for (int lane = 0; lane < 8; lane++) tile[row][lane * 36 + column] = part[lane];
    __syncthreads();
    #pragma unroll
    for (int k = 0; k < 1; k++) {
        const int at = k * 512 + threadIdx.x, place = at % 8 * 36 + at / 8;
        const index_t _j0 = (index_t)blockIdx.x % blocks * 256 + at;
        if (at < 256 && _j0 < 4096) {
            float total = tile[0][place];
            #pragma unroll
            for (int each = 1; each < 16; each++) total = Sum()(total, tile[each][place]);
            y0p[(_j0 + 4096 * _r1p)] = total;
        }
    }
}

extern "C" __global__ void __launch_bounds__(512) nest1(uint16_t *__restrict__ y0, const uint16_t *x0, float *y0p) {
    after_those_before();
    /* sum of the parts */
    extern __shared__ __align__(16) char rows[];
    float (*const tile)[160] = (float (*)[160])rows;
    const index_t blocks = 32, turn = (index_t)blockIdx.x / blocks;
    const int column = threadIdx.x % 32, row = threadIdx.x / 32;
    const index_t _j0 = ((index_t)blockIdx.x % blocks * 32 + column) * 4;
    float part[4];
    #pragma unroll
    for (int lane = 0; lane < 4; lane++) part[lane] = 0;
    if (_j0 < 4096) {
        #pragma unroll 16
        for (index_t _r1t = row; _r1t < 16; _r1t += 16) {
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
    for (int lane = 0; lane < 4; lane++) tile[row][lane * 40 + column] = part[lane];
    __syncthreads();
    #pragma unroll
    for (int k = 0; k < 1; k++) {
        const int at = k * 512 + threadIdx.x, place = at % 4 * 40 + at / 4;
        const index_t _j0 = (index_t)blockIdx.x % blocks * 128 + at;
        if (at < 128 && _j0 < 4096) {
            float total = tile[0][place];
            #pragma unroll
            for (int each = 1; each < 16; each++) total = Sum()(total, tile[each][place]);
            y0[_j0] = bf16_of_f32(total);
        }
    }
}
