"""docs/python_api.md: one program, whose blocks run in order and print what stands below them; every public name has its place."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import tensor_graphs as tg
from tensor_graphs.frontends.huggingface.folder import write_gemma3_folder
from tests.cli.command import TALK, TINY, with_words

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "python_api.md").read_text(encoding="utf-8")
BLOCKS = [(m.group(1), m.group(3)) for m in re.finditer(r"```python\n(.*?)```(\n\n```text\n(.*?)```)?", PAGE, re.DOTALL)]
MARK = "=== the end of a block ==="


def test_each_block_of_the_page_prints_what_stands_below_it(tmp_path: Path) -> None:
    """The page is run as one file, in a folder that has a small Gemma with a chat template in it. One test, as it is one run."""
    write_gemma3_folder(tmp_path / "gemma", TINY, seed=0)
    with_words(tmp_path / "gemma", tmp_path / "my-gemma", template=TALK)
    (tmp_path / "page.py").write_text("".join(f"{code}\nprint({MARK!r}, flush=True)\n" for code, _ in BLOCKS))
    own = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_DATA_HOME": str(tmp_path / "data"), "PAGER": "cat"}
    own.pop("TENSOR_GRAPHS_DB", None)
    done = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, env=own, capture_output=True, text=True, timeout=300,
                          check=False)
    assert done.returncode == 0, f"after {done.stdout.count(MARK)} blocks: {done.stderr}"
    *printed, rest = [re.sub(r"page\.py:\d+", "page.py:LINE", part.strip("\n")) for part in done.stdout.split(MARK)]
    assert rest == "" and len(printed) == len(BLOCKS)
    for number, ((code, expected), found) in enumerate(zip(BLOCKS, printed, strict=True)):
        assert found == (expected or "").strip("\n"), f"block {number}:\n{code}"


def test_every_public_name_has_a_page_or_a_place_on_this_one():
    pages = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "docs" / "ops").glob("*.md"))
    has_page = set(re.findall(r"```python\ntg\.(\w+)\(", pages)) | set(re.findall(r"^- `tg\.(\w+)` is", pages, re.MULTILINE))
    named = set(re.findall(r"(?<!\")\btg\.(\w+)", PAGE))             # not the header "tg.h"
    assert not set(dir(tg)) - has_page - named
    assert not (has_page | named) - set(dir(tg)), "the documents name what is not there"


def test_the_table_of_arguments_is_that_of_compile():
    table = PAGE.partition("| argument | what it says |")[2].partition("\n\n")[0]
    taken = set(inspect.signature(tg.compile).parameters) - {"graph", "progress"}
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == taken
