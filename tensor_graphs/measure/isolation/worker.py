"""worker: the process that runs candidates. It receives a job, generates inputs from the seed, runs the kernel, returns outputs.

It never holds an expected output or the database's location, and is killed with all its children when a job takes too long; it ends
when its parent, the supervisor, ends. It exchanges messages (signed_frames.py) with the judge over a socket; outputs go into a file
that the judge opens. A candidate's prints go to standard error; its standard input is empty."""

from __future__ import annotations

import importlib
import os
import random
import signal
import socket
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tensor_graphs.measure.isolation.fault_origin import LIBRARIES, PACKAGE, is_judges, judges_own, real_file
from tensor_graphs.measure.isolation.replies import JUDGE_ERROR
from tensor_graphs.measure.isolation.signed_frames import KEY_BYTES, Channel

if TYPE_CHECKING:
    from tensor_graphs.kernels.kernel import Kernel
    from tensor_graphs.kernels.kernel_origin import Origin
    from tensor_graphs.measure.isolation.process_state import StateGuard
    from tensor_graphs.measure.isolation.tampering import Watch
    from tensor_graphs.measure.timing.bench import Bench

INSIDE = "TENSOR_GRAPHS_WORKER"
"""environment variable that is set in a worker, where a candidate's module must not start another one"""

LONGEST_LOG, LONGEST_REASON = 8000, 400
"""most characters of a logged exception (the end of its traceback), and of the message in the log's first line"""

HEADER = "Traceback (most recent call last):"

HIGHEST = 900
"""upper bound of the random file descriptor of the socket; numbers below it are allowed on every system"""


_watches: list[Watch] = []
"""the record that workers inherit (`preload`); a worker takes it away before it runs a candidate, which would look here for it"""


def preload(names: Sequence[str] = ()) -> None:
    """Import the modules that every job needs, and these libraries. It also declares numpy's kernels, the baselines, reads the
    source of the usual backends' modules, and records what a candidate may not replace: this takes as long as a short job. It runs
    no kernel."""
    from tensor_graphs.kernels import identity, registry
    from tensor_graphs.language import text
    from tensor_graphs.measure.isolation import process_state, tampering
    from tensor_graphs.measure.timing import bench

    assert all((registry, text, bench, process_state))
    assert all(kernel.identity for kernel in {k.module: k for k in registry.load_backend("numpy")}.values())
    for name in registry.DEFAULT_BACKENDS:
        identity.reached(registry.backend_module(name).__name__)
    for name in names:
        with suppress(Exception):                                   # the kernel that imports it will raise the error
            importlib.import_module(name)
    if not _watches:
        _watches.append(tampering.Watch())
    _watches[0].extend()
    bench.grow_heap()


def _kernel(name: str, origins: Sequence[Origin]) -> Kernel:
    """Return the kernel after its origins were loaded. Raises KernelError: a script that is imported may not register it."""
    from tensor_graphs.kernels.kernel import KernelError
    from tensor_graphs.kernels.kernel_origin import MAIN
    from tensor_graphs.kernels.registry import kernel_named

    try:
        return kernel_named(name)
    except KernelError:
        started = next((o for o in origins if o.module == MAIN and o.file is not None), None)
        if started is None:
            raise
        raise KernelError("the judge imports the file, so register it at the top level, not under `if __name__ == …`: no kernel is "
                          f"named {name!r} once {started.file} is imported") from None


def other_kernel(kernel: Kernel, parts: Mapping[str, str]) -> str:
    """Return the message that this process has other code under a kernel's name. parts: `Code.parts` of the judge's kernel."""
    ours = kernel.code.parts
    differing = sorted(name for name in ours.keys() | parts.keys() if ours.get(name) != parts.get(name))
    return (f"{kernel.name} is another kernel in the worker: its source is not the same there "
            f"({', '.join(differing) or 'its declaration'})")[:LONGEST_REASON]


def run_job(job: dict[str, Any], channel: Channel, replaced: Callable[[], list[str]], outputs: int) -> dict[str, Any]:
    """Run one kernel on one signature at several points, and time it if the job requests that. replaced: `Watch.replaced`, looked
    up before the candidate could replace it. outputs: the file to which outputs are appended."""
    from tensor_graphs.kernels.c import library
    from tensor_graphs.kernels.kernel_origin import load
    from tensor_graphs.language.text import parse_graph
    from tensor_graphs.measure.isolation.process_state import StateGuard, deployed, floating_point
    from tensor_graphs.measure.points.single_op_plans import plain_plan, prepared_names
    from tensor_graphs.measure.timing.bench import Bench
    from tensor_graphs.runtime.compiled_graph import bind

    before = floating_point()
    for origin in job["origins"]:
        load(origin)
    if job.get("threads"):
        from tensor_graphs.runtime.threads import set_threads

        with judges_own():
            set_threads(job["threads"])
    if job.get("kind") == "deployed":
        from tensor_graphs.measure.timing.whole_paths import run_deployed

        return run_deployed(job)
    graph = parse_graph(job["graph"])
    kernel = _kernel(job["kernel"], job["origins"])
    if kernel.identity != job["identity"]:
        return {"status": "OTHER", "log": other_kernel(kernel, job["parts"])}
    library.settle()                                                # a backend has its library compiled meanwhile
    channel.send({"mark": "loaded"})                                # from now on the kernel's time limit counts
    if job.get("kind") == "declared":
        return {"status": "RAN", "names": list(prepared_names(graph, kernel))}
    bench = Bench(graph, kernel, outputs)
    guard = StateGuard(before)
    with deployed(job["argv"]):
        _show(bench, job, guard, channel)
    job["at"] = ""
    bench.look_at_large()
    shown = len(bench.replies)
    channel.send({"mark": "shown", "points": bench.replies})
    timing = job["time"]
    if timing is None:
        bench.late()
    else:
        with judges_own():
            plan = plain_plan(graph) if timing.baseline else None
            if plan is not None and plan.memory(**timing.point.binding).arena > 1 << 30:
                plan = None
            plain = bind(plan) if plan is not None else None
        with deployed(job["argv"]), guard.unchanged("one of the timed runs", seeds=False):
            bench.time(timing, plain, channel.send, lambda: channel.receive() or {}, replaced)
    return {"status": "RAN", "points": bench.replies[shown:]}


def _show(bench: Bench, job: dict[str, Any], guard: StateGuard, channel: Channel) -> None:
    """Run all points. The judge is informed before each one, as a kernel that crashes or hangs sends nothing any more."""
    half = len(job["points"]) // 2
    for number, point in enumerate(job["points"]):
        if job.get("many_calls") and number == half:
            often = bench.asked_often(job["points"][half:])
            channel.send({"mark": "at", "number": job["points"].index(often), "many": True})
            job["at"] = f", in many calls in a row at {often}"
            with guard.unchanged("one of many calls in a row"):
                bench.call_often(often)
        channel.send({"mark": "at", "number": number, "many": False})
        job["at"] = f", at {point}"                                 # for what is raised there
        with guard.unchanged(point):
            bench.show(point)


def guarded_job(job: dict[str, Any], channel: Channel, watch: Watch, outputs: int) -> dict[str, Any]:
    """Return the reply of `run_job`, or one that describes what the candidate raised. spoiled: run nothing else in this process."""
    from tensor_graphs.devices.c_code import ToolchainError
    from tensor_graphs.devices.device_registry import devices
    from tensor_graphs.kernels.c import library
    from tensor_graphs.kernels.kernel import KernelError
    from tensor_graphs.measure.isolation.process_state import StateError
    from tensor_graphs.measure.isolation.tampering import LIBRARIES
    from tensor_graphs.measure.points.input_descriptors import InputError
    from tensor_graphs.measure.timing.bench import LateError, ReplacedError

    replaced, file = watch.replaced, _file(outputs)
    try:
        watch.extend()
        reply = run_job(job, channel, replaced, outputs)
        library.settle()                                            # of backends that were found on the way
    except InputError as e:                                         # the file has changed since the judge looked; no kernel's fault
        reply = {"status": "INPUT", "log": str(e)}
    except (LateError, ReplacedError, StateError) as e:
        reply = {"status": "RUNTIME_ERROR", "log": str(e), "spoiled": True}
    except BaseException as e:                                      # SystemExit and KeyboardInterrupt of a candidate too
        ours = not isinstance(e, KernelError) and is_judges(e, _files_of(job["origins"]))
        status = JUDGE_ERROR if ours else "COMPILE_ERROR" if isinstance(e, ToolchainError) else "RUNTIME_ERROR"
        spoiled = ours or any(device.lost() for device in devices())
        reply = {"status": status, "log": words_of(e, job["origins"], job.get("at", "")), "spoiled": spoiled}
    signal.setitimer(signal.ITIMER_REAL, 0)
    if _file(outputs) != file:
        return {"status": "RUNTIME_ERROR", "log": "the kernel closed or replaced the file of its outputs", "spoiled": True}
    try:
        watch.extend()                                              # libraries that the kernel has imported
        names = [*replaced(), *(name for name in watch.strange() if name.rpartition(".")[0] in LIBRARIES)]
    except Exception as e:
        return {"status": JUDGE_ERROR, "log": words_of(e), "spoiled": True}
    return {"status": "RUNTIME_ERROR", "log": str(ReplacedError(names)), "spoiled": True} if names else reply


def words_of(error: BaseException, origins: Sequence[Origin] = (), at: str = "") -> str:
    """Return a log: the message and its position in the candidate's file on the first line (`logs.reason_of`), then the traceback.
    The exception's class is a candidate's, and may raise on any access. origins: of the kernels that were run. at: the point."""
    try:
        text = "".join(map(str, traceback.format_exception(error)))
        where, message = _place_of(error, origins), str(traceback.format_exception_only(error)[0]).partition("\n")[0].rstrip()
        first = f"{message[:LONGEST_REASON]} at {where}{at}\n" if where else ""
        room = LONGEST_LOG - len(first)
        return first + (text if len(text) <= room else f"{HEADER}\n{text[len(HEADER) + 1 - room:]}")
    except BaseException as e:
        name = type.__getattribute__(type(error), "__name__")
        return f"{str.__str__(name)}, which raises {type.__getattribute__(type(e), '__name__')} when it is to be described"


def _place_of(error: BaseException, origins: Sequence[Origin]) -> str:
    """Return e.g. `my.py:12 in my_softmax`: the innermost executed line in a file that declares a kernel, else in a file outside
    this package and libraries; "" if there is none."""
    steps = traceback.walk_tb(error.__traceback__)
    frames = [(real_file(frame.f_code.co_filename), line, frame.f_code.co_name) for frame, line in steps]
    own, libraries = _files_of(origins), (PACKAGE + os.sep, *LIBRARIES)
    inside = [place for place in frames if place[0] in own] or [place for place in frames if not place[0].startswith(libraries)]
    return "{}:{} in {}".format(os.path.basename(inside[-1][0]), *inside[-1][1:]) if inside else ""


def _files_of(origins: Sequence[Origin]) -> set[str]:
    """Return the files that declare the kernels of these origins."""
    return {real_file(origin.file) for origin in origins if origin.file is not None}


def _file(descriptor: int) -> tuple[int, int] | None:
    """Return (device, inode) of the file behind a descriptor; None if it is closed."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def serve(sock: socket.socket, outputs: int) -> None:
    """Serve jobs until the judge's end closes. outputs: the file to which outputs are appended."""
    key = sock.recv(KEY_BYTES, socket.MSG_WAITALL)
    channel = Channel(_elsewhere(sock), key, judge=False)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)                                             # what a candidate reads is nothing …
    os.dup2(2, 1)                                                   # … and what it prints goes where the judge reads last words
    channel.send({"status": "READY"})
    watch = _watches.pop()
    while (job := channel.receive()) is not None:
        channel.send(guarded_job(job, channel, watch, outputs))


def _elsewhere(sock: socket.socket) -> socket.socket:
    """Move the socket to a random file descriptor, which a candidate cannot guess."""
    for _ in range(8):
        number = random.SystemRandom().randrange(64, HIGHEST)
        try:
            os.fstat(number)
        except OSError:
            os.dup2(sock.fileno(), number, inheritable=False)
            sock.close()
            return socket.socket(fileno=number)
    return sock
