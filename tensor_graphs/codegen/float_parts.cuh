/* float_parts.cuh: a float as the sum of three bf16 numbers (Henry, Tang and Heinecke, Leveraging the bfloat16 artificial intelligence
 * datatype for higher-precision computations, 2019). */
#ifndef TG_FLOAT_PARTS_CUH
#define TG_FLOAT_PARTS_CUH
#include "numbers.cuh"

/* The nearest bf16, or the one before it where that is infinite; then what is left, twice. Of what is not finite nothing is left. */
TG_INLINE void three_parts(float x, uint16_t &high, uint16_t &middle, uint16_t &low) {
    high = bf16_of_f32(x);
    if ((high & 0x7fff) == 0x7f80) high = (uint16_t)(__float_as_uint(x) >> 16);
    const bool finite = (high & 0x7f80) != 0x7f80;
    const float rest = finite ? x - bf16_to_f32(high) : 0;
    middle = bf16_of_f32(rest);
    low = bf16_of_f32(rest - bf16_to_f32(middle));
}

/* All high parts of an array of rows, then the middle and (of 3 parts) the low ones, by blocks of 256 threads; behind each row, of SIZE
 * elements, there are zeros up to APART. The same where there are none: a multiple of 4 elements in all. */
template <int SIZE, int APART, int N_PARTS = 3> TG_INLINE void parts_of(const float *from, uint16_t *to, int64_t rows) {
    const int64_t count = rows * APART;
    for (int64_t i = (blockIdx.x * 256LL + threadIdx.x) * 4; i < count; i += gridDim.x * 1024LL) {
        Pack<float, 4> all;
        if (SIZE == APART) all = pack_at<4>(from + i);
        else
#pragma unroll
            for (int e = 0; e < 4; e++) {                           /* APART is a multiple of 4 */
                const int64_t row = i / APART, at = i % APART + e;
                all.at[e] = at < SIZE ? from[row * SIZE + at] : 0;
            }
        Pack<uint16_t, 4> part[3];
#pragma unroll
        for (int e = 0; e < 4; e++) three_parts(all.at[e], part[0].at[e], part[1].at[e], part[2].at[e]);
#pragma unroll
        for (int p = 0; p < N_PARTS; p++) put_pack<4>(to + p * count + i, part[p]);
    }
}

#endif
