"""measure/timing/one_thread.py: numpy's products keep to one thread while that is asked for."""

from __future__ import annotations

import pytest

from tensor_graphs.measure.timing import one_thread


def test_a_product_can_be_kept_to_one_thread_for_a_while() -> None:
    found = one_thread._functions()
    if found is None:
        pytest.skip("this numpy is built with another BLAS than OpenBLAS, whose threads are left as they are")
    get, put = found
    before = get()
    try:
        put(2)
        with one_thread.one_thread():
            assert get() == 1
        assert get() == 2
    finally:
        put(before)
