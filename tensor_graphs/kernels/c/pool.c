/* pool.c: the one thread pool of the process (docs/decisions/0003-one-thread-pool.md).
 *
 * A region is published as one 64-bit ticket: generation (32 bits) | next part (16) | parts (16). A thread claims a part
 * by compare-and-swap on the ticket. A claimed part keeps the region from ending, so the fields of the job are read only
 * after a claim; a worker that wakes too late finds no part left and touches nothing. Workers spin SPIN_NS after the last region
 * began, then sleep, and wake on another processor than the caller's. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "tg.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_THREADS = 256, MAX_PARTS = 65535, SPIN_NS = 500000, SLOTS = 3 };

static pthread_mutex_t region_lock = PTHREAD_MUTEX_INITIALIZER; /* held by the caller whose region is running */
static pthread_mutex_t sleep_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t sleep_cond = PTHREAD_COND_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static pthread_t workers[MAX_THREADS];
static int started;            /* workers alive; guarded by region_lock */
static int kept_off = -1;      /* the processor that they may not use; -1: they may use all; guarded by region_lock */
static _Atomic int wanted;     /* threads, the caller included; 0: not decided yet */
static _Atomic int stopping;
static _Atomic int sleepers;

static struct {
    void (*body)(void *, int, int);
    void *ctx;
} job;
static _Alignas(64) _Atomic uint64_t ticket;
static _Alignas(64) _Atomic int done;

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Threads that the quota of one cgroup folder pays for, rounded up; MAX_THREADS when it sets none. */
static int quota_of(const char *folder) {
    char path[1200], line[128];
    double quota = -1, period = -1;
    snprintf(path, sizeof path, "%s/cpu.max", folder); /* version 2: "max 100000" or "150000 100000" */
    FILE *file = fopen(path, "r");
    if (file) {
        if (fgets(line, sizeof line, file) && sscanf(line, "%lf %lf", &quota, &period) != 2) quota = -1;
        fclose(file);
    } else {
        snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
        if ((file = fopen(path, "r"))) {
            if (fscanf(file, "%lf", &quota) != 1) quota = -1;
            fclose(file);
        }
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
        if ((file = fopen(path, "r"))) {
            if (fscanf(file, "%lf", &period) != 1) period = -1;
            fclose(file);
        }
    }
    if (quota <= 0 || period <= 0) return MAX_THREADS;
    double threads = quota / period;
    return threads >= MAX_THREADS ? MAX_THREADS : threads <= 1 ? 1 : (int)(threads + 0.999);
}

/* The tightest quota from this process's cgroup up to the root, in version 2 and 1 layouts. */
static int quota_threads(void) {
    int best = MAX_THREADS;
    const char *roots[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"};
    for (int i = 0; i < 3; i++) {
        int q = quota_of(roots[i]);
        if (q < best) best = q;
    }
    FILE *file = fopen("/proc/self/cgroup", "r");
    if (!file) return best;
    char line[512], folder[1100];
    while (fgets(line, sizeof line, file)) {
        char *path = strchr(line, ':');
        path = path ? strchr(path + 1, ':') : NULL;
        if (!path) continue;
        int v2 = !strncmp(line, "0::", 3);
        if (!v2 && !strstr(line, "cpu")) continue;
        path++;
        path[strcspn(path, "\n")] = 0;
        while (*path && strcmp(path, "/")) {
            snprintf(folder, sizeof folder, "%s%s", v2 ? roots[0] : roots[1], path);
            int q = quota_of(folder);
            if (q < best) best = q;
            char *slash = strrchr(path, '/');
            if (!slash) break;
            *slash = 0;
        }
    }
    fclose(file);
    return best;
}

/* The number of threads worth running: those the affinity mask allows, no more than the cgroup quota pays for. */
TG_API int tg_default_threads(void) {
    int count = (int)sysconf(_SC_NPROCESSORS_ONLN);
#ifdef __linux__
    cpu_set_t set;
    if (!sched_getaffinity(0, sizeof set, &set)) count = CPU_COUNT(&set);
#endif
    int quota = quota_threads();
    if (quota < count) count = quota;
    return count < 1 ? 1 : count > MAX_THREADS ? MAX_THREADS : count;
}

/* Claims and runs parts of the region in the ticket until none is left. */
static void take_parts(void) {
    uint64_t seen = atomic_load_explicit(&ticket, memory_order_acquire);
    for (;;) {
        int next = (int)(seen >> 16 & 0xffff), parts = (int)(seen & 0xffff);
        if (next >= parts) return;
        if (!atomic_compare_exchange_weak_explicit(&ticket, &seen, seen + 65536, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        job.body(job.ctx, next, parts);
        atomic_fetch_add_explicit(&done, 1, memory_order_acq_rel);
        seen = atomic_load_explicit(&ticket, memory_order_acquire);
    }
}

static uint64_t generation(void) { return atomic_load(&ticket) >> 32; }

/* Stays awake while regions begin, whether or not it gets a part of one: a short one has ended before the thread that it woke runs,
 * and a thread that then slept again would leave such regions in a row to the caller, each at the price of a wake-up. */
static void *worker(void *unused) {
    (void)unused;
    while (!atomic_load(&stopping)) {
        const uint64_t last = generation(); /* before it takes any: a region that begins meanwhile is a new one */
        take_parts();
        int64_t until = now_ns() + SPIN_NS;
        int found = 0;
        do {
            for (int i = 0; i < 32 && !found; i++) {
                relax();
                found = generation() != last;
            }
        } while (!found && !atomic_load_explicit(&stopping, memory_order_relaxed) && now_ns() < until);
        if (found) continue;
        pthread_mutex_lock(&sleep_lock);
        atomic_fetch_add(&sleepers, 1); /* before the last look: a caller publishes first and reads `sleepers` second */
        while (generation() == last && !atomic_load(&stopping)) pthread_cond_wait(&sleep_cond, &sleep_lock);
        atomic_fetch_sub(&sleepers, 1);
        pthread_mutex_unlock(&sleep_lock);
    }
    return NULL;
}

static void before_fork(void) {
    pthread_mutex_lock(&region_lock);
    pthread_mutex_lock(&sleep_lock);
}

static void after_fork_parent(void) {
    pthread_mutex_unlock(&sleep_lock);
    pthread_mutex_unlock(&region_lock);
}

/* The workers do not exist in the child: forget them; the next region starts new ones. */
static void after_fork_child(void) {
    pthread_mutex_init(&region_lock, NULL);
    pthread_mutex_init(&sleep_lock, NULL);
    pthread_cond_init(&sleep_cond, NULL);
    started = 0;
    kept_off = -1;
    atomic_store(&sleepers, 0);
    atomic_store(&stopping, 0);
}

static void first_use(void) {
    if (!atomic_load(&wanted)) atomic_store(&wanted, tg_default_threads());
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

TG_API int tg_threads(void) {
    pthread_once(&once, first_use);
    return atomic_load(&wanted);
}

/* Sets the number of threads, the caller included (n <= 0: the default). Waits for a running region. */
TG_API void tg_set_threads(int n) {
    pthread_once(&once, first_use);
    pthread_mutex_lock(&region_lock);
    if (started) {
        atomic_store(&stopping, 1);
        pthread_mutex_lock(&sleep_lock);
        pthread_cond_broadcast(&sleep_cond);
        pthread_mutex_unlock(&sleep_lock);
        for (int i = 0; i < started; i++) pthread_join(workers[i], NULL);
        started = 0;
        kept_off = -1;
        atomic_store(&stopping, 0);
    }
    atomic_store(&wanted, n <= 0 ? tg_default_threads() : n > MAX_THREADS ? MAX_THREADS : n);
    pthread_mutex_unlock(&region_lock);
}

/* Linux likes to wake a thread where its waker runs: there it takes turns with the caller, or spins in its place, for the some
 * milliseconds that it takes the system to move one of them, longer than most regions. So sleepers are kept off the caller's
 * processor before they are woken; which of the others they use is the system's choice. */
static void keep_off_this_processor(void) {
#ifdef __linux__
    const int here = sched_getcpu();
    cpu_set_t set;
    if (here < 0 || here == kept_off || sched_getaffinity(0, sizeof set, &set) || CPU_COUNT(&set) < 2) return;
    CPU_CLR(here, &set);
    for (int i = 0; i < started; i++) pthread_setaffinity_np(workers[i], sizeof set, &set);
    kept_off = here;
#endif
}

void tg_parallel(void (*body)(void *, int, int), void *ctx, int parts) {
    int threads = tg_threads();
    /* A busy lock is another caller's region, or this one's own (a region inside a region): run here, in order. */
    if (parts <= 1 || parts > MAX_PARTS || threads <= 1 || pthread_mutex_trylock(&region_lock)) {
        for (int part = 0; part < parts; part++) body(ctx, part, parts);
        return;
    }
    threads = atomic_load(&wanted);
    while (started < threads - 1) {
        if (pthread_create(&workers[started], NULL, worker, NULL)) break; /* fewer threads still do all the parts */
        started++;
        kept_off = -1;
    }
    job.body = body;
    job.ctx = ctx;
    atomic_store_explicit(&done, 0, memory_order_relaxed);
    uint64_t generation = (atomic_load_explicit(&ticket, memory_order_relaxed) >> 32) + 1;
    atomic_store(&ticket, generation << 32 | (uint64_t)parts);
    if (atomic_load(&sleepers)) {
        keep_off_this_processor();
        pthread_mutex_lock(&sleep_lock);
        pthread_cond_broadcast(&sleep_cond);
        pthread_mutex_unlock(&sleep_lock);
    }
    take_parts();
    for (int spins = 0; atomic_load_explicit(&done, memory_order_acquire) < parts; spins++) {
        relax();
        if (spins > 2000) sched_yield(); /* the worker with the last part may be waiting for this core */
    }
    pthread_mutex_unlock(&region_lock);
}

int tg_parts(int64_t units, int64_t least) {
    int64_t threads = tg_threads();
    if (threads <= 1 || units < 2 * least) return 1;
    int64_t most = units / (least < 1 ? 1 : least), parts = most < 4 * threads ? most : 4 * threads;
    if (parts > threads) parts = parts / threads * threads; /* equal shares when nobody is disturbed */
    return (int)(parts > MAX_PARTS ? MAX_PARTS : parts);
}

/* --- scratch memory, one set of slots per thread --- */

typedef struct scratch {
    void *memory[SLOTS];
    size_t bytes[SLOTS];
    size_t asked[SLOTS]; /* the most since the watch began */
    int64_t watch;
} scratch;

static _Atomic int64_t watch, watched_bytes;

static _Thread_local scratch *mine;
static pthread_key_t scratch_key;
static pthread_once_t scratch_once = PTHREAD_ONCE_INIT;

static void scratch_free(void *set) {
    for (int slot = 0; slot < SLOTS; slot++) free(((scratch *)set)->memory[slot]);
    free(set);
}

static void scratch_init(void) { pthread_key_create(&scratch_key, scratch_free); }

void *tg_scratch(int slot, size_t bytes) {
    if (slot < 0 || slot >= SLOTS) return NULL;
    if (!mine) {
        pthread_once(&scratch_once, scratch_init);
        if (!(mine = calloc(1, sizeof *mine))) return NULL;
        pthread_setspecific(scratch_key, mine);
    }
    const size_t rounded = (bytes + 4095) & ~(size_t)4095;
    const int64_t now = atomic_load_explicit(&watch, memory_order_relaxed);
    if (mine->watch != now) memset(mine->asked, 0, sizeof mine->asked), mine->watch = now;
    if (mine->asked[slot] < rounded) {
        atomic_fetch_add(&watched_bytes, (int64_t)(rounded - mine->asked[slot]));
        mine->asked[slot] = rounded;
    }
    if (mine->bytes[slot] < bytes) {
        free(mine->memory[slot]);
        mine->bytes[slot] = 0;
        if (posix_memalign(&mine->memory[slot], 64, rounded)) return mine->memory[slot] = NULL;
        mine->bytes[slot] = rounded;
    }
    return mine->memory[slot];
}

/* Begins a new watch; returns what the last one saw: the bytes that fresh threads would hold after the same calls. */
TG_API int64_t tg_scratch_watch(void) {
    atomic_fetch_add(&watch, 1);
    return atomic_exchange(&watched_bytes, 0);
}

/* A region whose parts only pause, for measuring what a region costs. ints: parts, pauses of each part. */
static void pause_part(void *ctx, int part, int parts) {
    (void)part, (void)parts;
    for (int64_t i = 0; i < *(const int64_t *)ctx; i++) relax();
}

TG_KERNEL(tg_pause_region) {
    (void)ptr, (void)floats;
    int64_t pauses = ints[1];
    tg_parallel(pause_part, &pauses, (int)ints[0]);
}
