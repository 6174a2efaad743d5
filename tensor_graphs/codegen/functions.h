/* functions.h: functions of generated kernels that are alike in C and in CUDA. Included by numbers.h and numbers.cuh, which have
 * TG_INLINE and fmod. */
#ifndef TG_FUNCTIONS_H
#define TG_FUNCTIONS_H

#define OF_F64(name) \
    TG_INLINE double f64_##name(double x) { return name(x); }
#define OF_FLOATS(name) OF_F64(name) \
    TG_INLINE float f32_##name(float x) { return name##f(x); }
OF_FLOATS(sin) OF_FLOATS(cos) OF_FLOATS(tan) OF_FLOATS(sqrt) OF_FLOATS(floor)
OF_F64(exp2) OF_F64(log2) OF_F64(erf) OF_F64(erfc)

/* x mod y with the sign of y: an exact remainder, and one addition, which is rounded. */
#define MOD_OF(dtype, type, copysign)                                                                     \
    TG_INLINE type dtype##_mod(type x, type y) {                                                          \
        const type rest = dtype##_fmod(x, y);                                                             \
        return rest == 0 ? copysign((type)0, y) : (rest < 0) != (y < 0) ? rest + y : rest;                \
    }
MOD_OF(f32, float, copysignf)
MOD_OF(f64, double, copysign)

#endif
