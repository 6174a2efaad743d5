"""devices/features.py: the architecture and the instruction sets of this CPU."""

from __future__ import annotations

import platform

import pytest

from tensor_graphs.devices.features import features, first_core, flags_of

INTEL = "processor\t: 0\nmodel name\t: Some\nflags\t\t: fpu sse2 avx2\n\nprocessor\t: 1\nflags\t\t: fpu\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd sve\nCPU part\t: 0xd40\n"


@pytest.mark.parametrize(("text", "found"), [(INTEL, {"fpu", "sse2", "avx2"}), (ARM, {"fp", "asimd", "sve"}), ("", set())],
                         ids=["x86-64", "aarch64", "nothing"])
def test_the_flags_are_those_of_the_first_core(text: str, found: set[str]) -> None:
    assert flags_of(first_core(text)) == found


def test_the_architecture_is_a_feature_of_this_machine() -> None:
    assert platform.machine() in features()
