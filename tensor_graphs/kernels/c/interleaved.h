/* interleaved.h: runs a kernel and, in the middle of it, in another thread, the kernel again on other arrays.
 *
 * The kernel is compiled with -fsanitize-coverage=trace-pc: it calls `__sanitizer_cov_trace_pc` at each of its basic blocks.
 * TG_ENTRY is its name. What two calls share shows in the outputs of the first one; where the second waits for the first (a
 * lock), the first goes on after PATIENCE_NS. */
#include "tg.h"

#include <pthread.h>
#include <time.h>

#if defined(__clang__)
#define TG_UNTRACED __attribute__((no_sanitize("coverage")))
#else
#define TG_UNTRACED __attribute__((no_sanitize_coverage))
#endif

TG_KERNEL(TG_ENTRY);

typedef struct tg_call {
    void *const *ptr;
    const int64_t *ints;
    const double *floats;
} tg_call;

enum { PATIENCE_NS = 20000000 };

static _Thread_local int traced;
static int64_t blocks, meeting;
static tg_call other;
static pthread_t thread;
static int begun, ended; /* ended: guarded by lock */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

TG_UNTRACED static void *run_other(void *unused) {
    TG_ENTRY(other.ptr, other.ints, other.floats);
    pthread_mutex_lock(&lock);
    ended = 1;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
    return unused;
}

TG_UNTRACED static void meet(void) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += PATIENCE_NS;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    begun = !pthread_create(&thread, NULL, run_other, NULL);
    pthread_mutex_lock(&lock);
    while (begun && !ended && !pthread_cond_timedwait(&changed, &lock, &until)) {}
    pthread_mutex_unlock(&lock);
}

TG_API TG_UNTRACED void __sanitizer_cov_trace_pc(void) {
    if (!traced || blocks++ != meeting) return;
    traced = 0;
    meet();
    traced = 1;
}

/* Runs the call `first`, and the call `second` where the first is at its block number `at` (below 0: not at all). Returns the
 * number of blocks of the first. One caller at a time. */
TG_API TG_UNTRACED int64_t tg_interleaved(const tg_call *first, const tg_call *second, int64_t at) {
    blocks = 0, meeting = at, other = *second, begun = ended = 0;
    traced = 1;
    TG_ENTRY(first->ptr, first->ints, first->floats);
    traced = 0;
    if (begun) pthread_join(thread, NULL);
    return blocks;
}
