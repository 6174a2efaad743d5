"""Fixtures of the tests of the C kernels."""

from __future__ import annotations

import pytest

from tensor_graphs.kernels.c import library


@pytest.fixture(scope="module", params=["native", "portable"])
def each_build(request: pytest.FixtureRequest) -> library.NativeLibrary:
    """The library as it is used, and the one for any processor of this architecture (other vector width, no fused adds)."""
    return library.load() if request.param == "native" else library.build(portable=True)
