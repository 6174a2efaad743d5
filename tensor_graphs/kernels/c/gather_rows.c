/* gather_rows.c: rows out of a table of any float dtype, as f32 or f64. */
#include "loops.h"
#include "wide.h"

/* One row of the table, widened, times scale; rounded to f32 if that is the type of `out`. */
#define GATHER(name, T)                                                                                            \
    TG_INLINE void name##_from(T *out, const void *table, int64_t at, int64_t d, const T scale, const int dtype) { \
        for (int64_t j = 0; j < d; j++) out[j] = (T)widened(table, dtype, at + j) * scale;                         \
    }                                                                                                              \
    TG_INLINE void name##_rows(const call *c, int64_t from, int64_t to) {                                          \
        const int64_t rows = c->ints[1], d = c->ints[2];                                                           \
        const T scale = (T)c->floats[0];                                                                           \
        for (int64_t i = from; i < to; i++) {                                                                      \
            int64_t id = c->ints[4] == TG_I64 ? ((const int64_t *)c->ptr[2])[i] : ((const int32_t *)c->ptr[2])[i]; \
            T *out = (T *)c->ptr[0] + i * d;                                                                       \
            if (id < 0 || id >= rows) memset(out, 0, (size_t)d * sizeof *out);                                     \
            else if (c->ints[3] == TG_BF16) name##_from(out, c->ptr[1], id * d, d, scale, TG_BF16);                \
            else if (c->ints[3] == TG_F64) name##_from(out, c->ptr[1], id * d, d, scale, TG_F64);                  \
            else name##_from(out, c->ptr[1], id * d, d, scale, TG_F32);                                            \
        }                                                                                                          \
    }                                                                                                              \
    ROWS_KERNEL(name, ints[0], ints[2], name##_rows)

/* out[n,d] = table[ids] * scale; zeros for an id outside [0, rows).
 * ptr: out (f32 or f64), table (f32, bf16 or f64), ids.  ints: n, rows, d, table_dtype, ids_dtype.  floats: scale (rounded as
 * out). */
GATHER(tg_gather_rows, float)
GATHER(tg_gather_rows_f64, double)
