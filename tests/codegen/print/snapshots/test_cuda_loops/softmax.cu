/* nest over _i0 in 0..8192
 *     t3[0] = max over _r4 in 0..4096 of x0[4096*_i0 + _r4]
 *     t2[_j3] = exp((x0[4096*_i0 + _j3] + (t3[0] * -1.0)))    over _j3 in 0..4096
 *     t1[0] = sum over _r2 in 0..4096 of t2[_r2]
 *     y0[4096*_i0 + _j1] = div(t2[_j1], t1[0])    over _j1 in 0..4096 */
#define NARROW
#include "numbers.cuh"

typedef int index_t;

extern "C" __global__ void __launch_bounds__(128) nest0(uint16_t *__restrict__ y0, const uint16_t *x0) {
    extern __shared__ __align__(16) char rows[];
    float *const warps_t3 = (float *)(rows + 0);
    float *const warps_t1 = (float *)(rows + 16);
    float t3;
    float t2_2[32];
    float t1;
    Pack<uint16_t, 8> row_x0[4];
    float part_t3[8];
    Pack<uint16_t, 8> most_t3[1];
    float part_t1[8];
    Pack<uint16_t, 8> out_y0[1];
    const index_t _b = (index_t)blockIdx.x;
    const int _t = threadIdx.x;
    if (_b < 512) {
        const index_t _turn = _b;
        const index_t _i0 = _turn;
        #pragma unroll
        for (index_t _k = 0; _k < 4; _k++) {
            const index_t _at = (1024 * _k + 8 * _t);
            const index_t _r4 = _at;
            bring(x0 + (4096 * _i0 + _r4));
        }
    }
    after_those_before();
    const index_t _turn = _b;
    const index_t _i0 = _turn;
    #pragma unroll
    for (index_t _k = 0; _k < 4; _k++) {
        const index_t _at = (1024 * _k + 8 * _t);
        const index_t _r4 = _at;
        row_x0[_k] = pack_at<8>(x0 + (4096 * _i0 + _r4));
    }
    #pragma unroll
    for (int at = 0; at < 8; at++) part_t3[at] = -(float)INFINITY;
    #pragma unroll
    for (int at = 0; at < 8; at++) most_t3[at / 8].at[at % 8] = 0xff80;
    #pragma unroll
    for (index_t _k = 0; _k < 4; _k++) {
        const index_t _at = (1024 * _k + 8 * _t);
        const index_t _r4 = _at;
        keep_larger_bf16(most_t3[0], row_x0[_k]);
    }
    #pragma unroll
    for (index_t _v = 0; _v < 8; _v++) {
        const float v20 = bf16_to_f32(most_t3[0].at[_v]);
        part_t3[_v] = Max()(part_t3[_v], v20);
    }
    #pragma unroll
    for (index_t _n = 1; _n < 8; _n++) {
        const float v21 = part_t3[_n];
        part_t3[0] = Max()(part_t3[0], v21);
    }
    part_t3[0] = reduced<128>(part_t3[0], Max(), warps_t3);
    /* reduce_max */
    const float v22 = part_t3[0];
    t3 = v22;
    const float v12 = t3 * (-0x1.0000000000000p+0f);
    #pragma unroll
    for (index_t _k = 0; _k < 4; _k++) {
        const index_t _at = (1024 * _k + 8 * _t);
        const index_t _j3 = _at;
        #pragma unroll
        for (index_t _v = 0; _v < 8; _v++) {
            /* exp */
            const float v19 = bf16_to_f32(row_x0[_k].at[_v]);
            const float v23 = v19 + v12;
            const float v24 = f32_exp(v23);
            t2_2[(8 * _k + _v)] = v24;
        }
    }
    #pragma unroll
    for (int at = 0; at < 8; at++) part_t1[at] = 0;
    #pragma unroll
    for (index_t _k = 0; _k < 4; _k++) {
        const index_t _at = (1024 * _k + 8 * _t);
        const index_t _r2 = _at;
        #pragma unroll
        for (index_t _v = 0; _v < 8; _v++) {
            /* sum */
            const float v25 = t2_2[(8 * _k + _v)];
            part_t1[_v] = Sum()(part_t1[_v], v25);
        }
    }
    #pragma unroll
    for (index_t _n = 1; _n < 8; _n++) {
        const float v26 = part_t1[_n];
        part_t1[0] = Sum()(part_t1[0], v26);
    }
    part_t1[0] = reduced<128>(part_t1[0], Sum(), warps_t1);
    /* sum */
    const float v27 = part_t1[0];
    t1 = v27;
    const Divisor v32 = divisor_of(t1);
    #pragma unroll
    for (index_t _k = 0; _k < 4; _k++) {
        const index_t _at = (1024 * _k + 8 * _t);
        const index_t _j1 = _at;
        #pragma unroll
        for (index_t _v = 0; _v < 8; _v++) {
            /* cast */
            const float v25 = t2_2[(8 * _k + _v)];
            const float v33 = divided(v25, v32);
            out_y0[0].at[_v] = bf16_of_f32(v33);
        }
        put_pack<8>(y0 + (4096 * _i0 + _j1), out_y0[0]);
    }
}
