"""malformed_kernels: kernels that break what they share with their worker: replies, files, exceptions that it describes.

Each gets no verdict but a failure, and the judge goes on. The worker imports this module by name, as it would a user's.
"""

from __future__ import annotations

import gc
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tensor_graphs.kernels.kernel import Spec
from tests.measure.wrong_kernels import Arrays, Body, Candidate, add, right

MALFORMED: list[Candidate] = []


def malformed(*statuses: str, **options: Any) -> Callable[[Body], Body]:
    return add(MALFORMED, "|".join(statuses or ("RUNTIME_ERROR",)), "relu", options, 5.0, False)


def channel() -> Any:
    from tensor_graphs.measure.isolation.signed_frames import Channel

    return next(each for each in gc.get_objects() if isinstance(each, Channel))


# ---- what it raises ----


class _Private(Exception):
    __module__ = 5  # type: ignore[assignment]

    def __str__(self) -> str:
        raise RuntimeError("nobody may know")

    __repr__ = __str__


class Liar(Exception):
    def __str__(self) -> str:
        return "\x1b[2J\ud800 PASSED \x00" * 200_000


class NoName(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no name")


class Nameless(BaseException, metaclass=NoName):
    __qualname__ = "\ud800"


@malformed()
def raises_a_class_without_words(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    raise _Private


@malformed()
def raises_a_class_without_a_name(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    raise Nameless


@malformed()
def raises_megabytes_of_control_characters(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    raise Liar


@malformed()
def raises_an_error_about_its_inputs(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    """As a worker does when a user's file has changed."""
    from tensor_graphs.measure.points.input_descriptors import InputError

    raise InputError("the file has changed")


@malformed()
def raises_a_group_that_holds_itself_often(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    error: BaseException = ValueError("inner")
    for _ in range(5000):
        outer = ValueError("outer")
        outer.__cause__, error = error, outer
    raise error


# ---- what it prints ----


@malformed()
def prints_megabytes_and_dies(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    os.write(2, b"\x1b[31m\x00\xff\xfe" * (1 << 18))
    os._exit(3)


# ---- its files and folders ----


def _own_files() -> list[tuple[int, str]]:
    found = []
    for entry in os.listdir("/proc/self/fd"):
        try:
            found.append((int(entry), os.readlink(f"/proc/self/fd/{entry}")))
        except OSError:
            pass
    return found


def _each_file(change: Callable[[int], object]) -> None:
    for number, name in _own_files():
        if "tensor_graphs-" in name:
            change(number)


@malformed("RUNTIME_ERROR", "INCORRECT_DTYPE", "INCORRECT_NUMERICAL")
def makes_its_output_file_a_terabyte(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    right(outs, ins, attrs)
    _each_file(lambda number: os.ftruncate(number, 1 << 40))


@malformed("RUNTIME_ERROR", "INCORRECT_DTYPE", "INCORRECT_NUMERICAL")
def cuts_its_output_file_again_and_again(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    right(outs, ins, attrs)
    _each_file(lambda number: os.ftruncate(number, 7))


@malformed()
def closes_its_output_file(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    right(outs, ins, attrs)
    _each_file(lambda number: os.close(number) if number > 2 else None)


@malformed("RUNTIME_ERROR", "TIMEOUT")
def puts_a_pipe_into_the_place_of_its_output_file(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    right(outs, ins, attrs)
    _, end = os.pipe()
    _each_file(lambda number: os.dup2(end, number) if number > 2 else None)


@malformed()
def puts_a_device_into_the_place_of_its_output_file(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    right(outs, ins, attrs)
    end = os.open("/dev/null", os.O_RDWR)
    _each_file(lambda number: os.dup2(end, number) if number > 2 else None)


def _folder() -> Path:
    return Path(os.environ["XDG_DATA_HOME"]).parent


@malformed()
def removes_its_folder_and_dies(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    shutil.rmtree(_folder())
    os._exit(1)


@malformed()
def puts_a_link_into_the_place_of_its_folder_and_dies(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    """What the link leads to must be there when all is cleaned up."""
    target = Path(tempfile.gettempdir(), "tensor_graphs_trial_link_target")
    target.mkdir(exist_ok=True)
    (target / "kept").write_text("kept")
    shutil.rmtree(_folder())
    _folder().symlink_to(target)
    os._exit(1)


@malformed()
def puts_a_file_into_the_place_of_its_data_folder_and_dies(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    data = Path(os.environ["XDG_DATA_HOME"])
    shutil.rmtree(data)
    data.write_text("no folder")
    os._exit(1)


@malformed()
def puts_pipes_and_folders_everywhere_and_dies(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    for number in range(200):
        os.mkfifo(_folder() / f"{number}.bin")
        (_folder() / f"{number}.d.bin").mkdir()
    os.mkfifo(_folder() / "said.txt")
    _folder().chmod(stat.S_IRUSR)
    os._exit(1)


# ---- what it sends ----


@malformed()
def sends_lists_that_are_nested_deeply(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    found = channel()
    found._pack = lambda value: b"[" * 100_000 + b"]" * 100_000
    found.send({})


@malformed()
def says_that_it_passed(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0].fill(0)
    channel().send({"status": "PASSED", "log": ""})


@malformed()
def says_that_it_is_another_kernel(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    channel().send({"status": "OTHER", "log": "another kernel in the worker"})


@malformed()
def announces_a_gigabyte(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    channel().socket.sendall((1 << 30).to_bytes(8, "little") + bytes(32) + b" " * (1 << 20))


@malformed("TIMEOUT")
def announces_more_than_it_sends(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    channel().socket.sendall((1 << 16).to_bytes(8, "little") + bytes(32))
    while True:
        gc.collect()


@malformed()
def talks_without_end(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    while True:
        channel().send({"mark": "loaded"})


@malformed()
def makes_every_later_word_infinite(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    right(outs, ins, attrs)
    channel()._pack = lambda value: b'{"mark": "shown", "points": Infinity}'


# ---- what it declares ----


def _raises(spec: Spec) -> Any:
    if os.environ.get("TENSOR_GRAPHS_WORKER"):
        raise _Private
    raise AssertionError("a kernel's own code was run in the judge's process")


def _hangs(spec: Spec) -> Any:
    if os.environ.get("TENSOR_GRAPHS_WORKER"):
        while True:
            pass
    raise AssertionError("a kernel's own code was run in the judge's process")


@malformed(prepare=_raises)
def declares_a_preparation_that_raises(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    right(outs, ins, attrs)


@malformed("TIMEOUT", prepare=_hangs)
def declares_a_preparation_that_hangs(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    right(outs, ins, attrs)


@malformed(prepare=lambda spec: 7 if os.environ.get("TENSOR_GRAPHS_WORKER") else _raises(spec))
def declares_a_preparation_that_is_junk(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    right(outs, ins, attrs)


@malformed(traffic=_raises)
def declares_traffic_that_raises_and_is_wrong(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    raise ValueError(np.float32(1))


if os.environ.get("TENSOR_GRAPHS_WORKER"):
    from tensor_graphs.kernels.registry import register

    sys.setrecursionlimit(1000)
    for each in MALFORMED:
        register(each.kernel)
