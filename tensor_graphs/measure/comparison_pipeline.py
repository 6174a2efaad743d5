"""comparison_pipeline: compares many kernels with the oracle without timing them. Workers run one kernel after another; meanwhile
threads of this process have the oracle evaluate the next tasks and compare returned outputs (judge.py defines both)."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from queue import PriorityQueue
from typing import Any, Self

from tensor_graphs.costs.roofline import work
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.registry import device_of
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.measure.isolation.worker_process import WorkerProcess
from tensor_graphs.measure.judge import Judge, JudgeTask, Verdict, class_task, pairs_at
from tensor_graphs.measure.points.inputs import forget_tables
from tensor_graphs.measure.points.size_classes import smaller
from tensor_graphs.measure.timing.one_thread import one_thread


def compare(judge: Judge, asked: Sequence[JudgeTask]) -> Generator[tuple[JudgeTask, Verdict]]:
    """Yield each task with its verdict, untimed. Classes of sizes (size_classes.py) are compared first and stored."""
    return _Comparison(judge, asked).verdicts()


_DONE: Future[None] = Future()
_DONE.set_result(None)


class _TaskThreads:
    """Threads that work through a common queue, the most urgent tasks first."""

    def __init__(self, threads: int = 1) -> None:
        self._asked: PriorityQueue[tuple[int, int, Future[None], Callable[[], None] | None]] = PriorityQueue()
        self._numbers = itertools.count()
        self._threads = [threading.Thread(target=self._work, daemon=True, name="beside") for _ in range(threads)]

    def submit(self, work: Callable[[], None] | None, urgency: int) -> Future[None]:
        """Queue a task; urgency 0 runs first. Work None with urgency 3 ends one thread."""
        future: Future[None] = Future()
        self._asked.put((urgency, next(self._numbers), future, work))
        return future

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for _each in self._threads:
            self.submit(None, 3)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while True:
            _, _, future, work = self._asked.get()
            if work is None:
                return
            if future.set_running_or_notify_cancel():
                try:
                    work()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(None)


class _Comparison:
    """Comparison of many kernels. Several workers share it where all kernels are built-in; otherwise one worker runs everything."""

    def __init__(self, judge: Judge, asked: Sequence[JudgeTask]) -> None:
        self.judge = judge
        self.classes: dict[tuple[str, str], int] = {}
        """(kernel's identity, signature's key) of a class of sizes -> its index in the queue"""
        classes: list[JudgeTask] = []

        def ask_first(kernel: Kernel, small: Signature | None) -> None:
            """Queue the class of sizes that a task depends on; else `Judge._class_of` would run it on the judge's own worker."""
            if small is None or judge.is_on_file(kernel, small) or (kernel.identity, small.key) in self.classes:
                return
            ask_first(kernel, smaller(kernel, small))
            self.classes[kernel.identity, small.key] = len(classes)
            classes.append(class_task(kernel, small))

        for task in asked:
            ask_first(task.kernel, smaller(task.kernel, task.signature))
        # long tasks start early: a long last task would leave the other processors idle
        self.queue = [*classes, *sorted(asked, key=lambda task: -work(task.signature, pairs_at(task.signature, task.typical))[0])]
        self.found: list[Future[Verdict]] = [Future() for _ in self.queue]
        self.waits_for = [self._class_of(task) for task in self.queue]
        """future verdict on the class of sizes that each queued task depends on; None if that class is not queued"""
        on_host = any(device_of(task.kernel.backend).is_host for task in asked)
        most = judge.workers if on_host else judge.elsewhere
        self.workers = min(most, len(self.queue)) if all(task.kernel.ours for task in asked) else 1
        self._left = deque(range(len(self.queue)))
        self._ahead: dict[int, Future[None]] = {i: _DONE for i, task in enumerate(self.queue) if judge.is_foreseen(task)}
        """index in the queue -> future of the oracle's evaluation of the task's first job; done already for those foreseen"""
        self._stopped = False
        self._changed = threading.Condition()
        """held while an index is taken from the queue; notified whenever a task may have become ready"""
        for verdict in self.found[:len(self.classes)]:
            verdict.add_done_callback(self._look_further)
        self._tasks = _TaskThreads(1 if on_host else judge.side_threads)

    def verdicts(self) -> Generator[tuple[JudgeTask, Verdict]]:
        """Yield the requested tasks with their verdicts, those with the most work first."""
        with ExitStack() as stack:
            stack.callback(forget_tables)                           # the threads end now
            stack.enter_context(self._tasks)
            stack.enter_context(one_thread())                       # workers have the other processors
            stack.callback(self._stop)
            for foreseen in list(self._ahead):
                self._ask_the_rest(foreseen)
            self._look_ahead()
            self.judge.ready()
            for _ in range(1, self.workers):
                stack.enter_context(self._another())
            filed = 0
            while (i := self._next()) is not None:
                self._run(i, self.judge.worker)
                while filed < len(self.queue) and self.found[filed].done():
                    yield from self._filed(filed)
                    filed += 1
            for i in range(filed, len(self.queue)):
                yield from self._filed(i)

    def _filed(self, i: int) -> Iterator[tuple[JudgeTask, Verdict]]:
        task, verdict = self.queue[i], self.found[i].result()
        if i < len(self.classes):
            self.judge.record(task.kernel, task.signature, verdict, None)
        else:
            yield task, verdict

    def _class_of(self, asked: JudgeTask) -> Future[Verdict] | None:
        small = smaller(asked.kernel, asked.signature)
        place = None if small is None else self.classes.get((asked.kernel.identity, small.key))
        return None if place is None else self.found[place]

    def _next(self) -> int | None:
        """Remove and return the first queue index whose task is ready to run; waits for one. Return None when none is left."""
        with self._changed:
            while self._left:
                ready = (i for i in self._left if i in self._ahead and self._ahead[i].done() and self._has_class(i))
                place = next(ready, None)
                if place is not None:
                    self._left.remove(place)
                    return place
                self._changed.wait()
            return None

    def _look_further(self, _: Future[Any]) -> None:
        """Wake the workers: a class has its verdict, or the oracle has evaluated a job."""
        self._look_ahead()
        with self._changed:
            self._changed.notify_all()

    def _has_class(self, i: int) -> bool:
        verdict = self.waits_for[i]
        return verdict is None or verdict.done()

    def _run(self, i: int, worker: WorkerProcess) -> None:
        """Have the worker run the kernel of task i; a parallel thread then decides whether its outputs are right."""
        task, class_verdict = self.queue[i], self.waits_for[i]
        self._look_ahead()
        self._ahead[i].result()
        if class_verdict is not None:
            class_verdict.result()
        compared = self.judge.returned(task, worker, lambda: self._stopped)

        def find() -> None:
            try:
                verdict = compared if isinstance(compared, Verdict) else compared()
                if i < len(self.classes):
                    self.judge.note_class(task.kernel, task.signature, verdict)
            except BaseException as error:
                self.found[i].set_exception(error)
            else:
                self.found[i].set_result(verdict)

        if isinstance(compared, Verdict):
            find()
        else:
            self._tasks.submit(find, 0)

    def _look_ahead(self) -> None:
        """Have the oracle evaluate the next tasks that wait for no class: as many as there are workers, and one more."""
        with self._changed:
            for i in list(itertools.islice(filter(self._has_class, self._left), self.workers + 1)):
                if i not in self._ahead:
                    self._ahead[i] = self._tasks.submit(partial(self._ask_ahead, i), 2)
                    self._ahead[i].add_done_callback(self._look_further)

    def _ask_ahead(self, i: int) -> None:
        self.judge.look_ahead(self.queue[i])
        self._ask_the_rest(i)

    def _ask_the_rest(self, i: int) -> None:
        """Have a thread evaluate what the later jobs of task i need, unless its verdict comes before."""
        def ask() -> None:
            self.judge.ask_the_rest(self.queue[i], lambda: self._stopped or self.found[i].done())

        with self._changed:
            if not self._stopped:
                self._tasks.submit(ask, 1)

    @contextmanager
    def _another(self) -> Iterator[None]:
        """Context manager: start another worker that takes tasks from the queue; an exception in the body kills it immediately."""
        def take() -> None:
            while (i := self._next()) is not None:
                try:
                    self._run(i, worker)
                except BaseException as error:                      # the caller that waits for the verdict raises it
                    with suppress(InvalidStateError):
                        self.found[i].set_exception(error)
                    return
            worker.close()                                          # in this thread: it takes 0.1 s, and the others work on

        with WorkerProcess(self.judge.worker.timeout) as worker:
            thread = threading.Thread(target=take, daemon=True, name="compare")
            thread.start()
            try:
                yield
            except BaseException:
                self._stop()
                worker.kill()
                raise
            finally:
                thread.join()

    def _stop(self) -> None:
        """Start no further task, and cancel the futures that have not ended."""
        with self._changed:
            self._stopped = True
            self._left.clear()
            self._changed.notify_all()
        waited_for: list[Future[Any]] = [*self._ahead.values(), *self.found]
        for future in waited_for:
            future.cancel()
