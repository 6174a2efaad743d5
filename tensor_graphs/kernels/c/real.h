/* real.h: the number type of what is written once for f32 and f64: `real` is double behind wide.h, else float. Sums that f32 needs in
 * f64, or in pieces, are written out; in f64 these conversions are none. */
#ifndef TG_REAL_H
#define TG_REAL_H

#include "vec.h"

#ifdef TG_WIDE_H
typedef double real;
typedef vd vr;
typedef int64_t lane_int; /* as wide as a lane */
#define VR VD             /* lanes of a register */
TG_INLINE vr r_load(const real *p) { return d_load(p); }
TG_INLINE void r_store(real *p, vr v) { d_store(p, v); }
TG_INLINE vr r_splat(real x) { return d_splat(x); }
TG_INLINE double r_sum(vr v) { return d_sum(v); }
TG_INLINE real r_exp(real x) { return f64_exp(x); }
TG_INLINE real r_tanh(real x) { return f64_tanh(x); }
#define turned_real turned_64
/* A vector of weights, widened; `dtype` is a constant. */
TG_INLINE vr r_load_weights(const void *w, const int dtype, int64_t at) {
    return dtype == TG_F64 ? d_load((const double *)w + at) : d_widen(*(const vnu *)((const float *)w + at));
}
/* VR words of two bfloat16 each, widened. */
TG_INLINE void r_load_pairs(const void *w, vr *even, vr *odd) {
    const vnw word = (vnw)*(const vnu *)w;
    *even = d_widen((vn)(word << 16)), *odd = d_widen((vn)(word & 0xffff0000u));
}
#else
typedef float real;
typedef vf vr;
typedef int32_t lane_int;
#define VR VW
TG_INLINE vr r_load(const real *p) { return v_load(p); }
TG_INLINE void r_store(real *p, vr v) { v_store(p, v); }
TG_INLINE vr r_splat(real x) { return v_splat(x); }
TG_INLINE double r_sum(vr v) { return v_sum_wide(v); }
TG_INLINE real r_exp(real x) { return f32_exp(x); }
TG_INLINE real r_tanh(real x) { return f32_tanh(x); }
#define turned_real turned_32
TG_INLINE vr r_load_weights(const void *w, const int dtype, int64_t at) { return (void)dtype, v_load((const float *)w + at); }
TG_INLINE void r_load_pairs(const void *w, vr *even, vr *odd) {
    const vu word = (vu)v_load(w);
    *even = (vf)(word << 16), *odd = (vf)(word & 0xffff0000u);
}
#endif

enum { LINE = 64 / sizeof(real), /* of a cache line */ REAL_PANEL = 2 * VR /* lanes of a full panel (gemm.h, wide_gemm.h) */ };

#endif
