"""What a device takes by its own clock: a host that is late is no part of it."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tensor_graphs.devices.cpu import memory_of
from tensor_graphs.devices.cuda import Cuda
from tensor_graphs.devices.device import DeviceLost, Memory
from tensor_graphs.devices.device_registry import HOST, device_named
from tensor_graphs.devices.free_memory import OutOfMemory
from tensor_graphs.measure.timing import launch_ahead
from tensor_graphs.measure.timing.launch_ahead import LONG, MOST_FLUSHES, HostAhead
from tensor_graphs.runtime.arrays import device_array
from tests.fake import cuda as emulated


@pytest.fixture
def gpu_that_is_none(gpu_that_is_none: Cuda, monkeypatch: pytest.MonkeyPatch) -> Cuda:
    monkeypatch.setattr(launch_ahead, "EMPTIED", 1 << 12)
    return gpu_that_is_none


def late_until(device: Cuda, monkeypatch: pytest.MonkeyPatch, flushes: int, taken: float = 1e-6) -> list[int]:
    """Have the device have passed each mark that follows fewer flushes in a row, and all work take so long (seconds): by the clock
    of the host, which the emulated device has, it may take as long as others keep the processor. -> flushes before each mark so
    far."""
    flushed, before = [0], list[int]()
    fill = device.fill

    def counted(memory: Memory, byte: int) -> None:
        flushed[0] += 1
        fill(memory, byte)

    def passed(mark: object) -> bool:
        before.append(flushed[0])
        flushed[0] = 0
        return before[-1] < flushes

    monkeypatch.setattr(device, "fill", counted)
    monkeypatch.setattr(device, "passed", passed)
    monkeypatch.setattr(device, "between", lambda start, end: taken)
    return before


def test_work_that_the_device_had_waited_for_is_timed_again(gpu_that_is_none: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    before = late_until(gpu_that_is_none, monkeypatch, 3)
    ran: list[None] = []
    ahead = HostAhead(gpu_that_is_none)
    assert ahead.seconds(lambda: ran.append(None)) == 1e-6
    assert before == [1, 1, 2, 2, 4] and len(ran) == 5              # each twice: the host may have been held up for a moment
    ahead.seconds(lambda: ran.append(None))                         # what the host needs it needs the next time too
    assert before[5:] == [4] and len(ran) == 6


def test_work_that_waits_for_the_device_itself_is_timed_as_it_is_and_slows_no_other(gpu_that_is_none: Cuda,
                                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    before = late_until(gpu_that_is_none, monkeypatch, 10 * MOST_FLUSHES)
    ahead = HostAhead(gpu_that_is_none)
    ahead.seconds(lambda: None)
    assert before[-2:] == [MOST_FLUSHES] * 2 and len(before) == 2 * MOST_FLUSHES.bit_length() and ahead.flushes == 1


def test_work_that_takes_long_is_not_run_again(gpu_that_is_none: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    before = late_until(gpu_that_is_none, monkeypatch, 10 * MOST_FLUSHES, 2 * LONG)
    assert HostAhead(gpu_that_is_none).seconds(lambda: None) == 2 * LONG and before == [1]


def test_work_takes_what_lies_between_its_marks(gpu_that_is_none: Cuda) -> None:
    assert HostAhead(gpu_that_is_none).seconds(lambda: time.sleep(2 * LONG)) > LONG


def test_less_is_written_before_where_there_is_no_room_for_more(gpu_that_is_none: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    allocate, asked = gpu_that_is_none.allocate, list[int]()

    def allocated(nbytes: int) -> Memory:
        asked.append(nbytes)
        if nbytes > most:
            raise OutOfMemory("others have it\n  fix: none")
        return allocate(nbytes)

    monkeypatch.setattr(gpu_that_is_none, "allocate", allocated)
    monkeypatch.setattr(launch_ahead, "EMPTIED", 8 << 20)
    most = 2 << 20
    assert HostAhead(gpu_that_is_none).seconds(lambda: None) >= 0.0 and asked == [8 << 20, 2 << 20]
    most = 0
    with pytest.raises(OutOfMemory):
        HostAhead(gpu_that_is_none)


def test_a_device_whose_work_is_done_when_a_call_returns_is_asked_once() -> None:
    ahead = HostAhead(HOST)
    assert ahead.seconds(lambda: time.sleep(0.01)) >= 0.01 and ahead.flushes == 1


def test_what_is_written_before_is_the_byte_that_is_said(gpu_that_is_none: Cuda) -> None:
    ahead = HostAhead(gpu_that_is_none)
    ahead.seconds(lambda: None, 7)
    there = np.empty(16, np.uint8)
    gpu_that_is_none.download(gpu_that_is_none.part(ahead._memory, 0, 16), memory_of(there))
    assert (there == 7).all()


def test_a_device_that_is_lost_says_so(gpu_that_is_none: Cuda) -> None:
    ahead = HostAhead(gpu_that_is_none)
    mark = gpu_that_is_none.mark()
    gpu_that_is_none.driver.lost = emulated.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(DeviceLost, match="asking for a mark"):
        gpu_that_is_none.passed(mark)
    assert ahead.flushes == 1


@pytest.mark.gpu
@pytest.mark.alone
def test_a_gpu_takes_as_long_for_a_short_kernel_however_late_the_host_is() -> None:
    """A copy of 4 KB takes some microseconds; the host here needs a millisecond before each, which one flush of a GPU that others
    use, too, may take."""
    gpu = device_named("cuda:0")
    given, out = (device_array(np.zeros(1024, np.float32), "cuda:0") for _ in range(2))

    def copy() -> None:
        end = time.perf_counter() + 1e-3
        while time.perf_counter() < end:
            pass
        gpu.copy(given.memory, out.memory)

    ahead = HostAhead(gpu)
    assert min(ahead.seconds(copy) for _ in range(5)) < 5e-5 and 2 <= ahead.flushes <= MOST_FLUSHES
