/* Threads of a block as contexts that take turns on one processor: each runs until it waits at a barrier or ends. A barrier opens when
 * all threads of the block (of the warp) that have not ended wait at it. `order` says in which order they run, so that what depends on
 * it shows. Who reads or writes where nothing is ends all of them.
 *
 * A context is made once and serves one block after another. Turns are jumps: swapcontext makes a system call for each. */
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <ucontext.h>
#include <vector>

extern "C" {
unsigned tg_thread, tg_block, tg_blocks, tg_warp_slots[64][32][2];
char *tg_rows;
}

namespace {
enum { RUNS, WAITS_BLOCK, WAITS_WARP, ENDED };
struct Copy {
    void *to;
    const void *from;
    unsigned bytes;
};
constexpr size_t STACK = 1 << 17;                                   /* bytes */
struct Thread {
    jmp_buf here;                                                   /* where it goes on, once it has begun */
    bool begun = false;
    std::vector<std::vector<Copy>> copies;                          /* groups of those that are under way, the last one still open */
    std::unique_ptr<char[]> stack{new char[STACK]};
    int state = RUNS;
};
std::vector<Thread> threads;                                        /* as many as the largest block so far has had */
jmp_buf scheduler;
void (*kernel)(const uint64_t *);
const uint64_t *words;

bool alone;
sigjmp_buf before;
void fault(int) { siglongjmp(before, 1); }
/* While it is there, a fault is no end of the process. */
struct Caught {
    struct sigaction held[2], ours = {};
    Caught() {
        ours.sa_handler = fault, ours.sa_flags = SA_NODEFER;
        sigaction(SIGSEGV, &ours, &held[0]), sigaction(SIGBUS, &ours, &held[1]);
    }
    ~Caught() { sigaction(SIGSEGV, &held[0], nullptr), sigaction(SIGBUS, &held[1], nullptr); }
};

void back(Thread &me, int how) {
    me.state = how;
    if (!_setjmp(me.here)) _longjmp(scheduler, 1);
}
void begin() {
    Thread &me = threads[tg_thread];
    for (;;) {
        kernel(words);
        back(me, ENDED);
    }
}
void go_on(Thread &t) {
    if (_setjmp(scheduler)) return;
    if (t.begun) _longjmp(t.here, 1);
    t.begun = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = t.stack.get(), context.uc_stack.ss_size = STACK, context.uc_link = nullptr;
    makecontext(&context, begin, 0);
    setcontext(&context);
}
void wait(int how) {
    if (alone) abort();
    back(threads[tg_thread], how);
}
/* Lets those go on who wait at a barrier that all who could come to it wait at; whether there were any. */
bool opened(unsigned first, unsigned end, int how) {
    bool any = false;
    for (unsigned t = first; t < end; t++) {
        if (threads[t].state == how) any = true;
        else if (threads[t].state != ENDED) return false;
    }
    for (unsigned t = first; any && t < end; t++)
        if (threads[t].state == how) threads[t].state = RUNS;
    return any;
}
/* Every thread from its beginning to its end. */
void run_alone(unsigned grid, unsigned block, unsigned order) {
    for (unsigned k = 0; k < grid; k++)
        for (unsigned i = 0; i < block; i++) {
            tg_block = order ? grid - 1 - k : k, tg_thread = order ? block - 1 - i : i;
            kernel(words);
        }
}
int run(void (*f)(const uint64_t *), const uint64_t *w, unsigned grid, unsigned block, unsigned shared, unsigned order, int fill) {
    kernel = f, words = w, tg_blocks = grid;
    std::vector<char> rows(shared + 16, (char)fill);
    tg_rows = rows.data() + (16 - (uintptr_t)rows.data() % 16) % 16;
    if (alone) {
        run_alone(grid, block, order);
        return 0;
    }
    if (threads.size() < block) threads = std::vector<Thread>(block);
    for (unsigned k = 0; k < grid; k++) {
        tg_block = order ? grid - 1 - k : k;
        for (unsigned t = 0; t < block; t++) threads[t].state = RUNS, threads[t].copies.assign(1, {});
        for (;;) {
            bool ran = false, alive = false;
            for (unsigned i = 0; i < block; i++) {
                const unsigned t = order ? block - 1 - i : i;
                if (threads[t].state == RUNS) {
                    tg_thread = t, ran = true;
                    go_on(threads[t]);
                }
                alive = alive || threads[t].state != ENDED;
            }
            if (!alive) break;
            bool any = opened(0, block, WAITS_BLOCK);
            for (unsigned t = 0; t < block; t += 32) any = opened(t, t + 32 < block ? t + 32 : block, WAITS_WARP) || any;
            if (!ran && !any) return 1;
        }
    }
    return 0;
}
}  // namespace

extern "C" void tg_syncthreads() { wait(WAITS_BLOCK); }

/* What launches before write, until the first block waits for them: it holds other bytes. */
extern "C" {
struct Hidden { void *at; const void *bytes; uint64_t count; } tg_hidden[64];
unsigned tg_hiding = 0;
void tg_waited() {
    if (!tg_hiding) return;
    tg_syncthreads();                                               /* all of its threads have come so far */
    for (unsigned i = 0; i < tg_hiding; i++) std::memcpy(tg_hidden[i].at, tg_hidden[i].bytes, tg_hidden[i].count);
    tg_hiding = 0;
}
}
extern "C" void tg_syncwarp() { wait(WAITS_WARP); }
/* Copies that a thread does not wait for are made as late as they may be. */
extern "C" void tg_copy_ahead(void *to, const void *from, unsigned bytes) { threads[tg_thread].copies.back().push_back({to, from, bytes}); }
extern "C" void tg_copies_end() { threads[tg_thread].copies.emplace_back(); }
extern "C" void tg_copies_wait(unsigned left) {
    auto &copies = threads[tg_thread].copies;
    while (copies.size() > left + 1) {
        for (const Copy &c : copies.front()) std::memcpy(c.to, c.from, c.bytes);
        copies.erase(copies.begin());
    }
}

/* 0, 1 where threads wait for each other at different barriers, or 2 where there was a fault. fill: what the memory holds that they
 * share; waits: whether they wait for each other at all. */
extern "C" int tg_run(void (*f)(const uint64_t *), const uint64_t *w, unsigned grid, unsigned block, unsigned shared, unsigned order,
                      unsigned fill, unsigned waits) {
    const Caught caught;
    alone = !waits;
    volatile int wrong = 2;
    if (!sigsetjmp(before, 1)) wrong = run(f, w, grid, block, shared, order, (int)fill);
    if (wrong) threads.clear();                                     /* some are in the middle of the kernel */
    return wrong;
}
