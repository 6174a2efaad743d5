/* nest over _i0 in 0..8192
 *     t3[0] = max over _r4 in 0..4096 of x0[4096*_i0 + _r4]
 *     t2[_j3] = exp((x0[4096*_i0 + _j3] + (t3[0] * -1.0)))    over _j3 in 0..4096
 *     t1[0] = sum over _r2 in 0..4096 of t2[_r2]
 *     y0[4096*_i0 + _j1] = div(t2[_j1], t1[0])    over _j1 in 0..4096 */
#define NARROW
#include "numbers.cuh"

typedef int index_t;

extern "C" __global__ void __launch_bounds__(128) nest0(uint16_t *__restrict__ y0, const uint16_t *x0) {
    if (blockIdx.x < 512) {
        const int thread = threadIdx.x % 128, group = threadIdx.x / 128;
        const index_t turn = (index_t)blockIdx.x;
        const index_t _i0 = turn;
        #pragma unroll
        for (int k = 0; k < 4; k++) {
            const index_t at = (k * 128 + thread) * 8;
            const index_t _r4 = at;
            bring(x0 + (4096 * _i0 + _r4));
        }
    }
    after_those_before();
    const int thread = threadIdx.x % 128, group = threadIdx.x / 128;
    __shared__ float warps_t3[32];
    __shared__ float warps_t1[32];
    const index_t count = 8192;
    for (index_t begin = (index_t)blockIdx.x * 1; begin < count; begin = count) {
        const index_t turn = begin;
        const index_t _i0 = turn;
        float t2[32];
        Pack<uint16_t, 8> row_x0_10[4];
        #pragma unroll
        for (int k = 0; k < 4; k++) {
            const index_t at = (k * 128 + thread) * 8;
            const index_t _r4 = at;
            row_x0_10[k] = pack_at<8>(x0 + (4096 * _i0 + _r4));
        }
        /* reduce_max */
        float part_t3[8];
        Pack<uint16_t, 8> most_part_t3;
        #pragma unroll
        for (int lane = 0; lane < 8; lane++) most_part_t3.at[lane] = 0xff80;
        #pragma unroll
        for (int k = 0; k < 4; k++) {
            const index_t at = (k * 128 + thread) * 8;
            const index_t _r4 = at;
            keep_larger_bf16(most_part_t3, row_x0_10[k]);
        }
        #pragma unroll
        for (int lane = 0; lane < 8; lane++) part_t3[lane] = bf16_to_f32(most_part_t3.at[lane]);
        #pragma unroll
        for (int lane = 1; lane < 8; lane++) part_t3[0] = Max()(part_t3[0], part_t3[lane]);
        const float t3 = reduced<128>(part_t3[0], Max(), warps_t3);
        /* exp */
        const float v12 = t3 * (-0x1.0000000000000p+0f);
        #pragma unroll
        for (int k = 0; k < 4; k++) {
            const index_t at = (k * 128 + thread) * 8;
            const index_t _j3 = at;
            #pragma unroll
            for (int lane = 0; lane < 8; lane++) {
                const index_t first__j3 = _j3;
                {
                    const index_t _j3 = first__j3 + lane;
                    /* exp */
                    const float v4 = bf16_to_f32(row_x0_10[k].at[lane]);
                    const float v13 = v4 + v12;
                    const float v14 = f32_exp(v13);
                    t2[k * 8 + lane] = v14;
                }
            }
        }
        /* sum */
        float part_t1[8];
        #pragma unroll
        for (int lane = 0; lane < 8; lane++) part_t1[lane] = 0;
        #pragma unroll
        for (int k = 0; k < 4; k++) {
            const index_t at = (k * 128 + thread) * 8;
            const index_t _r2 = at;
            #pragma unroll
            for (int lane = 0; lane < 8; lane++) {
                const index_t first__r2 = _r2;
                {
                    const index_t _r2 = first__r2 + lane;
                    const float v15 = t2[k * 8 + lane];
                    part_t1[lane] = Sum()(part_t1[lane], (float)v15);
                }
            }
        }
        #pragma unroll
        for (int lane = 1; lane < 8; lane++) part_t1[0] = Sum()(part_t1[0], part_t1[lane]);
        const float t1 = reduced<128>(part_t1[0], Sum(), warps_t1);
        /* cast */
        const Divisor by17 = divisor_of(t1);
        #pragma unroll
        for (int k = 0; k < 4; k++) {
            const index_t at = (k * 128 + thread) * 8;
            const index_t _j1 = at;
            Pack<uint16_t, 8> out_y0;
            #pragma unroll
            for (int lane = 0; lane < 8; lane++) {
                const index_t first__j1 = _j1;
                {
                    const index_t _j1 = first__j1 + lane;
                    /* cast */
                    const float v16 = t2[k * 8 + lane];
                    const float v18 = divided(v16, by17);
                    out_y0.at[lane] = bf16_of_f32(v18);
                }
            }
            put_pack<8>(y0 + (4096 * _i0 + _j1), out_y0);
        }
    }
}
