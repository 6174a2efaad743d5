"""What the default run leaves out of the cases of a test."""

from __future__ import annotations

import re
from pathlib import Path

from tests.sampled import EVERY


def test_each_row_is_of_a_test_that_there_is() -> None:
    files = Path(__file__).parent.rglob("test_*.py")
    defined = {name for file in files for name in re.findall(r"def (test_\w+)", file.read_text())}
    assert set(EVERY) <= defined
