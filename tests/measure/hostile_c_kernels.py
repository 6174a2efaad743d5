"""hostile_c_kernels: C kernels of a user's that crash, hang, write where they may not, or go on after they have returned.

Each row of HOSTILE_C says with which statuses it may end; PASSED is never among them. `c.honest` is the control. The worker imports
this module by name, as it would a user's; only there the kernels are registered.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import tensor_graphs as tg
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.registry import unregister


@dataclass(frozen=True)
class Row:
    """A kernel, with which statuses it may end, and what its log says. timeout: of its worker, in seconds."""

    kernel: Kernel
    statuses: tuple[str, ...]
    said: str
    timeout: float


TEXT = """
#define _GNU_SOURCE
#include "loops.h"
#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int64_t calls;
static float *volatile nowhere;

static void right(void *const *ptr, const int64_t *ints) {
    const float *x = ptr[1];
    float *out = ptr[0];
    for (int64_t i = 0; i < ints[0]; i++) out[i] = x[i] != x[i] || x[i] > 0 ? x[i] : 0;
}

%s

TG_KERNEL(%s) {
    float *out = ptr[0];
    (void)floats, (void)out, calls++;
    %s
}
"""
HOSTILE_C: list[Row] = []


def row(name: str, statuses: str, said: str, body: str, before: str = "", timeout: float = 30.0) -> None:
    """relu in C: `body` is the function's, `before` stands before it."""
    kernel = tg.c_kernel("relu", source=TEXT % (before, name, body), entry=name, dtypes=["f32"],
                         ints=lambda spec: [math.prod(spec.outputs[0].shape)])
    HOSTILE_C.append(Row(kernel, tuple(statuses.split("|")), said, timeout))


row("honest", "PASSED", "", "right(ptr, ints);")

# ---- it ends, or does not end
row("writes_at_address_zero", "RUNTIME_ERROR", "SIGSEGV", "*nowhere = 1;")
row("aborts", "RUNTIME_ERROR", "SIGABRT", "abort();")
row("aborts_when_it_is_loaded", "RUNTIME_ERROR", "SIGABRT", "right(ptr, ints);",
    "__attribute__((constructor)) static void begin(void) { abort(); }")
row("exits_as_if_all_were_well", "RUNTIME_ERROR", "exit 0", "right(ptr, ints); if (calls > 4) _exit(0);")
row("recurses_without_end", "RUNTIME_ERROR", "SIGSEGV", "out[0] = (float)deeper(calls);",
    "__attribute__((noinline)) static int64_t deeper(int64_t n) { volatile char held[4096]; held[n % 4096] = 1;"
    " return n < 0 ? 0 : deeper(n + 1) + held[n % 4096]; }")
row("hangs", "TIMEOUT", "no answer", "for (;;) pause();", timeout=3.0)
row("spins_in_a_part_of_a_region", "TIMEOUT", "no answer", "tg_parallel(part, 0, 4);",
    "static void part(void *ctx, int i, int parts) { (void)ctx, (void)i, (void)parts; for (volatile int on = 1; on;) {} }",
    timeout=3.0)
row("hangs_deaf_to_signals", "TIMEOUT", "no answer",
    "sigset_t all; sigfillset(&all); pthread_sigmask(SIG_BLOCK, &all, 0); for (volatile int on = 1; on;) {}", timeout=3.0)

# ---- it writes where it may not
row("writes_behind_its_output", "INCORRECT_SHAPE", "behind its last element", "right(ptr, ints); out[ints[0]] = 1;")
row("writes_before_its_output", "INCORRECT_SHAPE", "before its first element", "right(ptr, ints); out[-1] = 1;")
row("writes_far_away", "RUNTIME_ERROR", "SIGSEGV", "right(ptr, ints); out[(int64_t)1 << 40] = 1;")
row("changes_its_operand", "MUTATED_INPUT", "an operand was changed", "right(ptr, ints); ((float *)ptr[1])[0] += 1;")
row("takes_more_scratch_memory_than_there_is", "RUNTIME_ERROR", "SIGSEGV",
    "memset(tg_scratch(1, (size_t)1 << 60), 0, 4096); right(ptr, ints);")
row("takes_a_slot_that_does_not_exist", "RUNTIME_ERROR", "SIGSEGV", "*(volatile char *)tg_scratch(99, 64) = 1; right(ptr, ints);")

# ---- it does not do the work, or later
row("does_nothing", "INCORRECT_NUMERICAL", "", "")
row("remembers_its_first_answer", "INCORRECT_NUMERICAL", "",
    "if (known && size == ints[0]) memcpy(out, known, (size_t)size * 4);"
    "else { right(ptr, ints); size = ints[0]; known = memcpy(realloc(known, (size_t)size * 4 + 1), out, (size_t)size * 4); }",
    "static float *known; static int64_t size;")
row("works_on_in_a_thread_of_its_own", "RUNTIME_ERROR|INCORRECT_NUMERICAL", "",
    "static pthread_t thread; memcpy(saved, ptr, sizeof saved); count = ints[0]; pthread_create(&thread, 0, later, 0);",
    "static void *saved[2]; static int64_t count;"
    " static void *later(void *unused) { (void)unused; usleep(2000); right(saved, &count); return 0; }")
row("rounds_upwards_from_now_on", "RUNTIME_ERROR", "", "right(ptr, ints); fesetround(FE_UPWARD);")

if not os.environ.get("TENSOR_GRAPHS_WORKER"):
    for each in HOSTILE_C:
        unregister(each.kernel.name)
