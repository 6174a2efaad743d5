"""kernels/device_requirements.py: what a kernel asks of the device; what the device lacks makes it no candidate, and nothing else
does."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import Any

import pytest

import tensor_graphs as tg
from tensor_graphs.kernels import device_requirements
from tensor_graphs.kernels.kernel import Kernel, KernelError
from tensor_graphs.kernels.kernel_decorator import host_kernel
from tensor_graphs.kernels.registry import by_op, left_out, load_backend, matching, unregister
from tensor_graphs.kernels.signature import signature_of

HERE = platform.machine()
SPEC = signature_of(tg.sin(tg.input("x", (4,), tg.f32))).spec


def fill(outs: Any, ins: Any, attrs: Any) -> None:
    outs[0][...] = 0


@pytest.fixture
def asking() -> Iterator[Any]:
    """Registers a kernel with requirements, for the length of a test."""

    def declare(**wanted: Any) -> Kernel:
        return host_kernel("sin", name="numpy.asking", requirements=wanted)(fill)

    yield declare
    unregister("numpy.asking")


@pytest.mark.parametrize("wanted", [{}, {"arch": [HERE]}, {"arch": HERE}, {"arch": ["sm_90", HERE]}], ids=str)
def test_a_kernel_whose_requirements_are_met_is_a_candidate(asking: Any, wanted: dict[str, Any]) -> None:
    kernel = asking(**wanted)
    assert matching(SPEC, by_op([kernel])) == [kernel] and left_out(SPEC, by_op([kernel])) == []


@pytest.mark.parametrize(("wanted", "why"), [
    ({"arch": ["sm_90"]}, "it needs sm_90, which this device (cpu) has not"),
    ({"arch": ("sm_90", "gfx942")}, "it needs sm_90 or gfx942, which this device (cpu) has not"),
    ({"cuda_min": "12.4"}, "it needs CUDA 12.4 or newer, and its device is cpu"),
    ({"arch": [HERE], "cuda_min": "12"}, "it needs CUDA 12 or newer, and its device is cpu"),
], ids=["arch", "two", "cuda", "one-of-both"])
def test_a_kernel_whose_requirements_are_not_met_is_none_and_it_is_known_why(asking: Any, wanted: dict[str, Any], why: str) -> None:
    kernel = asking(**wanted)
    assert matching(SPEC, by_op([kernel])) == [] and left_out(SPEC, by_op([kernel])) == [(kernel, why)]


@pytest.mark.parametrize(("wanted", "said"), [
    ({"archs": ["avx2"]}, "name 'archs', which nothing here can check\n  fix: did you mean arch?"),
    ({"gigabytes": 80}, "name 'gigabytes', which nothing here can check\n  fix: one of arch, cuda_min"),
    ({"arch": []}, r"say that 'arch' is []"),
    ({"arch": [90]}, r"say that 'arch' is [90]"),
    ({"arch": 90}, "say that 'arch' is 90"),
    ({"cuda_min": 12.4}, "say that 'cuda_min' is 12.4\n  fix: a version as a text, like \"12.4\""),
    ({"cuda_min": "new"}, "say that 'cuda_min' is 'new'"),
], ids=["near", "unknown", "none", "number-in-list", "number", "float", "word"])
def test_a_requirement_that_nothing_can_check_is_refused_when_the_kernel_is_declared(wanted: dict[str, Any], said: str) -> None:
    with pytest.raises(KernelError) as error:
        host_kernel("sin", name="numpy.refused", requirements=wanted)(fill)
    assert str(error.value).startswith("the requirements of kernel 'numpy.refused' ") and said in str(error.value)
    assert "\n  fix: " in str(error.value)
    assert all(k.name != "numpy.refused" for k in load_backend("numpy"))


def test_requirements_that_are_no_dict_are_refused() -> None:
    assert device_requirements.problem(["arch"]) == "are list\n  fix: a dict, like {\"arch\": [\"avx512f\"]}"


def test_requirements_are_kept_as_they_were_checked(asking: Any) -> None:
    wanted = {"arch": [HERE]}
    kernel = host_kernel("sin", name="numpy.asking", requirements=wanted)(fill)
    wanted["gigabytes"] = [80]
    assert kernel.requirements == {"arch": [HERE]}
