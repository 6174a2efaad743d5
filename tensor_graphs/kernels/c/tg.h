/* tg.h: the shape every native kernel has, the thread pool it runs on, and the list the runner walks.
 *
 * A kernel is `void NAME(void *const *ptr, const int64_t *ints, const double *floats)`: ptr holds the outputs, then the
 * inputs (an optional input may be NULL); ints holds sizes and strides in elements; floats holds eps, scales, …
 * Each kernel's comment states the order of all three. */
#ifndef TG_H
#define TG_H

#include <stddef.h>
#include <stdint.h>

#define TG_API __attribute__((visibility("default")))
#define TG_INLINE static inline __attribute__((always_inline))
#define TG_KERNEL(name) TG_API void name(void *const *ptr, const int64_t *ints, const double *floats)

enum { TG_F32 = 0, TG_BF16 = 1, TG_F64 = 2, TG_F16 = 3 }; /* the dtype flags of weights and tables */
enum { TG_I32 = 0, TG_I64 = 1 };  /* the dtype flags of indices */

typedef void (*tg_kernel)(void *const *ptr, const int64_t *ints, const double *floats);

enum { TG_MAX_PTR = 16, TG_MAX_INT = 32, TG_MAX_FLOAT = 8 };

/* One step of a flat program. ptr_base[i] indexes the table of base addresses (-1: the pointer is NULL);
 * ptr_offset[i] and ints[i] index the table of values (ptr_offset -1: offset 0). */
typedef struct tg_step {
    tg_kernel fn;
    int32_t n_ptr, n_int, n_float, _pad;
    int32_t ptr_base[16];
    int32_t ptr_offset[16];
    int32_t ints[32];
    double floats[8];
} tg_step;

/* Runs body(ctx, part, parts) once for every part in 0..parts-1, on the one pool of the process, and returns when all are
 * done. Parts may run in any order and on any thread, one after another on a single one if the pool is busy: a part
 * never waits for another. */
TG_API void tg_parallel(void (*body)(void *ctx, int part, int parts), void *ctx, int parts);

/* The number of threads of the pool, the caller included. */
TG_API int tg_threads(void);

/* How many parts to cut `units` of work into when a part should hold at least `least`: a few per thread, so that a slow
 * core does not hold up the region; 1 means "not worth a region". */
TG_API int tg_parts(int64_t units, int64_t least);

/* Memory kept by the calling thread, 64-byte aligned, contents undefined; one block per slot, valid until the next call
 * with the same slot on the same thread. NULL when there is no memory or no such slot. Slot 0: shared by the parts of a
 * region (asked for by its caller); slot 1: private to a part. */
TG_API void *tg_scratch(int slot, size_t bytes);

/* Asks for what is read some way on in a stream of lines. AMD's Zen cores have it by then, and each hint takes the turn of a load: a
 * product of one row by f32 weights read 44 GB/s with hints and 57 without, where a pure read made 60 (two Zen 4 cores). On Intel's a
 * distance of 2560 bytes was the best of 0, 640, 1280, 2560, 5120. */
TG_INLINE void tg_ahead(const void *stream) {
#if defined(__znver1__) || defined(__znver2__) || defined(__znver3__) || defined(__znver4__) || defined(__znver5__)
    (void)stream;
#else
    __builtin_prefetch((const char *)stream + 2560, 0, 3);
#endif
}

TG_INLINE int64_t tg_min(int64_t a, int64_t b) { return a < b ? a : b; }
TG_INLINE int64_t tg_max_i(int64_t a, int64_t b) { return a > b ? a : b; }
TG_INLINE int64_t tg_ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* The half-open range of part `part` when `count` things are cut into `parts`, in multiples of `unit`. */
TG_INLINE void tg_range(int64_t count, int64_t unit, int part, int parts, int64_t *from, int64_t *to) {
    int64_t units = tg_ceil(count, unit);
    *from = tg_min(count, units * part / parts * unit);
    *to = tg_min(count, units * (part + 1) / parts * unit);
}

#endif
