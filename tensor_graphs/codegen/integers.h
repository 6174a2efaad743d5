/* integers.h: division of integers that floors, and floats as integers, for generated kernels in C and in CUDA. Included by numbers.h
 * and numbers.cuh, which have TG_INLINE and the ends of the types. */
#ifndef TG_INTEGERS_H
#define TG_INTEGERS_H

/* floor(a / b), 0 where b is 0; the least number by -1 wraps. */
#define IDIV(name, type, wide, unsigned_type)                                                     \
    TG_INLINE type name(type a, type b) {                                                          \
        if (b == 0) return 0;                                                                      \
        if (b == (type)-1) return (type)(0 - (unsigned_type)a);                                    \
        wide q = (wide)a / b;                                                                      \
        return (type)(q - (((wide)a % b != 0) && ((a < 0) != (b < 0))));                           \
    }
IDIV(idiv_i8, int8_t, int, uint8_t)
IDIV(idiv_i16, int16_t, int, uint16_t)
IDIV(idiv_i32, int32_t, int32_t, uint32_t)
IDIV(idiv_i64, int64_t, int64_t, uint64_t)
#define UDIV(name, type) \
    TG_INLINE type name(type a, type b) { return b == 0 ? 0 : (type)(a / b); }
UDIV(idiv_u8, uint8_t)
UDIV(idiv_u16, uint16_t)
UDIV(idiv_u32, uint32_t)
UDIV(idiv_u64, uint64_t)

/* A float as an integer: truncated, saturated, NaN as 0. low and past are exact in both float types. */
#define SATURATED(name, type, from, low, past, most)                                              \
    TG_INLINE type name(from x) {                                                                  \
        return x != x ? (type)0 : x < (from)(low) ? (type)(low) : x >= (from)(past) ? (type)(most) : (type)x; \
    }
#define SATURATED_BOTH(type_name, type, low, past, most)            \
    SATURATED(type_name##_of_f32, type, float, low, past, most)     \
    SATURATED(type_name##_of_f64, type, double, low, past, most)
SATURATED_BOTH(i8, int8_t, -128, 128, INT8_MAX)
SATURATED_BOTH(i16, int16_t, -32768, 32768, INT16_MAX)
SATURATED_BOTH(i32, int32_t, INT32_MIN, 2147483648.0, INT32_MAX)
SATURATED_BOTH(i64, int64_t, INT64_MIN, 9223372036854775808.0, INT64_MAX)
SATURATED_BOTH(u8, uint8_t, 0, 256, UINT8_MAX)
SATURATED_BOTH(u16, uint16_t, 0, 65536, UINT16_MAX)
SATURATED_BOTH(u32, uint32_t, 0, 4294967296.0, UINT32_MAX)
SATURATED_BOTH(u64, uint64_t, 0, 18446744073709551616.0, UINT64_MAX)

#endif
