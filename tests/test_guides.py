"""docs/training.md, service.md, strategies.md, onnx.md, fleet.md: a page is one program that prints what stands below it.
The commands of serving.md run against the server that it starts."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tensor_graphs.frontends.huggingface.folder import write_gemma3_folder
from tests.cli.command import TALK, TG, TINY, environment, tg, with_words

ROOT = Path(__file__).parent.parent
MARK = "=== the end of a block ==="


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a small Gemma with a chat template lies."""
    made = tmp_path_factory.mktemp("guides")
    write_gemma3_folder(made / "gemma", TINY, seed=0)
    with_words(made / "gemma", made / "my-gemma", template=TALK)
    return made


@pytest.mark.parametrize("page", [pytest.param("training.md", marks=pytest.mark.long), "service.md",
                                  pytest.param("strategies.md", marks=pytest.mark.long), "onnx.md"])
def test_each_block_of_a_guide_prints_what_stands_below_it(page: str, folder: Path) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", text, re.DOTALL)
    assert len(blocks) >= 2
    (folder / "page.py").write_text("".join(f"{code}\nprint({MARK!r}, flush=True)\n" for code, _ in blocks))
    own = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "page.py"], cwd=folder, env=own, capture_output=True, text=True, timeout=600,
                          check=False)
    assert done.returncode == 0, done.stderr
    printed = [part.strip("\n") for part in done.stdout.split(MARK)]
    assert printed == [*(expected.strip("\n") for _, expected in blocks), ""]


@pytest.mark.long
def test_the_commands_of_the_fleet_run_one_after_the_other(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "fleet.md").read_text(encoding="utf-8")
    commands = [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    ours = [command for command in commands if command.startswith("tg ")]
    assert len(ours) == len(commands) - 2 >= 8                       # but for pip and the URL of a server
    (tmp_path / "my-gemma").symlink_to(folder / "my-gemma")
    monkeypatch.chdir(tmp_path)
    for command in ours:
        words = shlex.split(command.replace("--budget 60", "--budget 2"), comments=True)
        done = tg(*words[1:], env={"TENSOR_GRAPHS_DB": str(tmp_path / "own.db")})
        assert done.returncode == 0, f"{command}: {done.stderr}"


def test_the_commands_of_the_page_on_serving_run_against_its_server(folder: Path) -> None:
    text = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    shell, (program, printed) = re.findall(r"```sh\n(.*?)```", text, re.DOTALL), *re.findall(
        r"```python\n(.*?)```\n\n```text\n(.*?)```", text, re.DOTALL)
    (command,), requests = shell[0].splitlines(), shell[1].splitlines()
    assert command.startswith("tg serve ") and len(requests) >= 5
    words = shlex.split(command.replace("8080", "0"))
    with subprocess.Popen([*TG, *words[1:], "--json"], cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = json.loads(server.stdout.readline())["url"].rpartition(":")[2]
            for line in requests:
                done = subprocess.run(["sh", "-c", line.replace("8080", port).replace("curl", "curl -f")], capture_output=True,
                                      text=True, timeout=60, check=False)
                assert done.returncode == 0 and done.stdout.strip(), line
            done = subprocess.run([sys.executable, "-c", program.replace("8080", port)], capture_output=True, text=True, timeout=60,
                                  check=False)
            assert done.stdout == printed, done.stderr
        finally:
            server.terminate()
    assert server.returncode == 0
