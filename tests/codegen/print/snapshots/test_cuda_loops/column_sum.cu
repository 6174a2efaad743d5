/* nest over _r1p in 0..16
 *     y0p[_j0 + 4096*_r1p] = sum over _r1q in 0..512 of x0[_j0 + 2097152*_r1p + 4096*_r1q]    over _j0 in 0..4096
 * nest over nothing
 *     y0[_j0] = sum over _r1t in 0..16 of y0p[_j0 + 4096*_r1t]    over _j0 in 0..4096 */
#define NARROW
#include "numbers.cuh"

typedef int index_t;

extern "C" __global__ void __launch_bounds__(512) nest0(uint16_t *__restrict__ y0, const uint16_t *x0, float *y0p) {
    extern __shared__ __align__(16) char rows[];
    float *const tile_y0p = (float *)(rows + 0);
    float part_y0p[8];
    Pack<uint16_t, 8> p1[1];
    float part_y0p_2;
    const index_t _b = (index_t)blockIdx.x;
    const int _w = threadIdx.x / 32;
    const int _l = threadIdx.x % 32;
    after_those_before();
    const index_t _turn = (_b / 16);
    const index_t _r1p = _turn;
    #pragma unroll
    for (int at = 0; at < 8; at++) part_y0p[at] = 0;
    const index_t _j0 = (256 * _b + 8 * _l - 4096 * _turn);
    if (_j0 < 4096) {
        #pragma unroll 16
        for (index_t _r1q = _w; _r1q < 512; _r1q += 16) {
            p1[0] = pack_at<8>(x0 + (_j0 + 2097152 * _r1p + 4096 * _r1q));
            #pragma unroll
            for (index_t _v = 0; _v < 8; _v++) {
                /* sum, in parts */
                const float v3 = bf16_to_f32(p1[0].at[_v]);
                part_y0p[_v] = Sum()(part_y0p[_v], v3);
            }
        }
    }
    #pragma unroll
    for (index_t _v = 0; _v < 8; _v++) {
        const float v7 = part_y0p[_v];
        tile_y0p[(_l + 36 * _v + 288 * _w)] = v7;
    }
    __syncthreads();
    #pragma unroll
    for (index_t _k = 0; _k < 1; _k++) {
        const index_t _at = (_l + 32 * _w);
        if (_at < 256) {
            const index_t _column = (_at + 256 * _b - 4096 * _turn);
            if (_column < 4096) {
                part_y0p_2 = 0;
                #pragma unroll
                for (index_t _n = 0; _n < 16; _n++) {
                    const float v8 = tile_y0p[(36 * _at + 288 * _n - 287 * (_at / 8))];
                    part_y0p_2 = Sum()(part_y0p_2, v8);
                }
                y0p[(_column + 4096 * _r1p)] = part_y0p_2;
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(512) nest1(uint16_t *__restrict__ y0, const uint16_t *x0, float *y0p) {
    extern __shared__ __align__(16) char rows[];
    float *const tile_y0 = (float *)(rows + 0);
    float part_y0[4];
    Pack<float, 4> p2[1];
    float part_y0_2;
    const index_t _b = (index_t)blockIdx.x;
    const int _w = threadIdx.x / 32;
    const int _l = threadIdx.x % 32;
    after_those_before();
    const index_t _turn = 0;
    #pragma unroll
    for (int at = 0; at < 4; at++) part_y0[at] = 0;
    const index_t _j0 = (128 * _b + 4 * _l - 4096 * _turn);
    #pragma unroll 16
    for (index_t _r1t = _w; _r1t < 16; _r1t += 16) {
        p2[0] = pack_at<4>(y0p + (_j0 + 4096 * _r1t));
        #pragma unroll
        for (index_t _v = 0; _v < 4; _v++) {
            /* sum of the parts */
            const float v15 = p2[0].at[_v];
            part_y0[_v] = Sum()(part_y0[_v], v15);
        }
    }
    #pragma unroll
    for (index_t _v = 0; _v < 4; _v++) {
        const float v16 = part_y0[_v];
        tile_y0[(_l + 40 * _v + 160 * _w)] = v16;
    }
    __syncthreads();
    #pragma unroll
    for (index_t _k = 0; _k < 1; _k++) {
        const index_t _at = (_l + 32 * _w);
        if (_at < 128) {
            const index_t _column = (_at + 128 * _b - 4096 * _turn);
            if (_column < 4096) {
                part_y0_2 = 0;
                #pragma unroll
                for (index_t _n = 0; _n < 16; _n++) {
                    const float v17 = tile_y0[(40 * _at + 160 * _n - 159 * (_at / 4))];
                    part_y0_2 = Sum()(part_y0_2, v17);
                }
                y0[_column] = bf16_of_f32(part_y0_2);
            }
        }
    }
}
