"""runtime/threads.py: one number of threads per process."""

from __future__ import annotations

import pytest
import torch

from tensor_graphs.kernels.registry import native_library
from tensor_graphs.runtime.threads import set_threads


def test_the_number_counts_for_our_kernels_and_for_torch() -> None:
    before, torch_before = native_library().threads(), torch.get_num_threads()
    try:
        for count in (1, 3):
            set_threads(count)
            assert native_library().threads() == count and torch.get_num_threads() == count
    finally:
        native_library().set_threads(before)
        torch.set_num_threads(torch_before)


def test_no_threads_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^0 threads: at least one is needed$"):
        set_threads(0)
