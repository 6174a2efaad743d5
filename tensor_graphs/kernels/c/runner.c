/* runner.c: executes a flat list of kernel calls in one native call. */
#include "tg.h"

#include <time.h>

static int run_one(const tg_step *step, char *const *bases, const int64_t *values) {
    void *ptr[TG_MAX_PTR];
    int64_t ints[TG_MAX_INT];
    if (!step->fn || step->n_ptr < 0 || step->n_ptr > TG_MAX_PTR || step->n_int < 0 || step->n_int > TG_MAX_INT ||
        step->n_float < 0 || step->n_float > TG_MAX_FLOAT)
        return -1;
    for (int i = 0; i < step->n_ptr; i++) {
        int64_t offset = step->ptr_offset[i] < 0 ? 0 : values[step->ptr_offset[i]];
        ptr[i] = step->ptr_base[i] < 0 ? NULL : bases[step->ptr_base[i]] + offset;
    }
    for (int i = 0; i < step->n_int; i++) ints[i] = values[step->ints[i]];
    step->fn(ptr, ints, step->floats);
    return 0;
}

/* Runs `count` steps in order. Returns 0, or i + 1 when step i is malformed (the steps before it have run). */
TG_API int tg_run(const tg_step *steps, int64_t count, char *const *bases, const int64_t *values) {
    for (int64_t i = 0; i < count; i++)
        if (run_one(steps + i, bases, values)) return (int)(i + 1);
    return 0;
}

/* tg_run of a list that runs again and again: {steps, count, bases, values} lie together, in one line of the caches. */
TG_API int tg_run_at(const int64_t *where) {
    return tg_run((const tg_step *)where[0], where[1], (char *const *)where[2], (const int64_t *)where[3]);
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* As tg_run, and adds each step's wall time [s] to seconds_per_step[i] (the caller zeroes it). */
TG_API int tg_run_profiled(const tg_step *steps, int64_t count, char *const *bases, const int64_t *values,
                           double *seconds_per_step) {
    double before = seconds();
    for (int64_t i = 0; i < count; i++) {
        if (run_one(steps + i, bases, values)) return (int)(i + 1);
        double after = seconds();
        seconds_per_step[i] += after - before;
        before = after;
    }
    return 0;
}

TG_API int64_t tg_step_size(void) { return (int64_t)sizeof(tg_step); }

TG_KERNEL(tg_noop) { (void)ptr, (void)ints, (void)floats; }
