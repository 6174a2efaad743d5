"""docs/torch.md: the Python of the page is one program that prints what stands below each block."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MARK = "=== the end of a block ==="
BACKEND = """import torch._dynamo                # as an installation registers it, by an entry point
from tensor_graphs.frontends.torch.backend import tensor_graphs
torch._dynamo.register_backend(tensor_graphs)
"""


@pytest.mark.long
@pytest.mark.processes
def test_each_block_of_the_page_prints_what_stands_below_it(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "torch.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", text, re.DOTALL)
    assert len(blocks) >= 4
    (tmp_path / "page.py").write_text(BACKEND + "".join(f"{code}\nprint({MARK!r}, flush=True)\n" for code, _ in blocks))
    own = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_DATA_HOME": str(tmp_path / "data")}
    done = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, env=own, capture_output=True, text=True, timeout=600,
                          check=False)
    assert done.returncode == 0, done.stderr
    printed = [part.strip("\n") for part in done.stdout.split(MARK)]
    assert printed == [*(expected.strip("\n") for _, expected in blocks), ""]
