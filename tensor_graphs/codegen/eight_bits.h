/* eight_bits.h: floats of eight bits (OFP8 1.0) as f32 and back, for generated kernels in C and in CUDA. Included by numbers.h and
 * numbers.cuh. Without branches and without numbers below the smallest normal f32, so that loops over them vectorise. */
#ifndef TG_EIGHT_BITS_H
#define TG_EIGHT_BITS_H

/* Exponent and mantissa are moved to where f32 has them. What has exponent 0 is made with exponent 1 instead, less its leading 1. */
TG_INLINE float f32_of_f8e4m3(uint8_t x) {
    const uint32_t size = x & 0x7fu, sign = (uint32_t)(x & 0x80u) << 24;
    const uint32_t normal = (size << 20) + (120u << 23); /* the biases are 7 and 127 */
    const uint32_t small = bits_of(float_of((size << 20) + (121u << 23)) - 0x1p-6f);
    const uint32_t bits = size < 8 ? small : size == 0x7f ? 0x7fc00000u : normal;
    return float_of(bits | sign);
}
TG_INLINE float f32_of_f8e5m2(uint8_t x) {
    const uint32_t size = x & 0x7fu, sign = (uint32_t)(x & 0x80u) << 24;
    const uint32_t normal = (size << 21) + (112u << 23);
    const uint32_t small = bits_of(float_of((size << 21) + (113u << 23)) - 0x1p-14f);
    const uint32_t special = size == 0x7c ? 0x7f800000u : 0x7fc00000u;
    const uint32_t bits = size < 4 ? small : size < 0x7c ? normal : special;
    return float_of(bits | sign);
}

/* To nearest, ties to even: half of the last place less one, and one more where that place is odd, is added before the rest is cut off.
 * Below the smallest normal number the sum with a float whose last place is theirs does it. What is out of range is NaN. */
TG_INLINE uint8_t f8e4m3_of_f32(float x) {
    const uint32_t bits = bits_of(x), size = bits & 0x7fffffffu, sign = bits >> 24 & 0x80u;
    const uint32_t normal = ((size + 0x7ffffu + (size >> 20 & 1u)) >> 20) - (120u << 3);
    const uint32_t small = bits_of(float_of(size) + 0x1p14f) - bits_of(0x1p14f);
    const uint32_t near = size < 121u << 23 ? small : normal;
    return (uint8_t)((near < 0x7f ? near : 0x7f) | sign);
}
/* The same, infinite where it is out of range. */
TG_INLINE uint8_t f8e5m2_of_f32(float x) {
    const uint32_t bits = bits_of(x), size = bits & 0x7fffffffu, sign = bits >> 24 & 0x80u;
    const uint32_t normal = ((size + 0xfffffu + (size >> 21 & 1u)) >> 21) - (112u << 2);
    const uint32_t small = bits_of(float_of(size) + 0x1p7f) - bits_of(0x1p7f);
    const uint32_t near = size < 113u << 23 ? small : normal;
    return (uint8_t)((size > 0x7f800000u ? 0x7e : near < 0x7c ? near : 0x7c) | sign);
}

#endif
