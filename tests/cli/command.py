"""command: runs `tg` as a person does, in a process of its own, and holds what it says to the command line's rules."""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from tensor_graphs.choice.storing import VARIABLE
from tensor_graphs.frontends.huggingface.folder import FULL, SLIDING, Gemma3TextConfig
from tests.cli.warm_command import Warm

ROOT = Path(__file__).parents[2]
TG = (sys.executable, "-m", "tensor_graphs.cli.main")
SCREEN = 40
"""lines that an error may take"""

TINY = Gemma3TextConfig(
    vocab_size=211,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    rms_norm_eps=1e-6,
    sliding_window=8,
    layer_types=(SLIDING, FULL),
    max_position_embeddings=256,
)


TALK = "w2{% for m in messages %} {{ {'user': 'w3', 'assistant': 'w4', 'system': 'w5'}[m.role] }} {{ m.content }} w1{% endfor %} w4"
"""a chat template"""


def with_words(model: Path, folder: Path, *, template: str | None, end: Sequence[int] = (1,)) -> Path:
    """A new folder with the model of another one, a tokenizer of the words w0, w1, … for the ids 0, 1, …, a chat template, and ids
    that end an answer."""
    folder.mkdir()
    for file in (model / "config.json", model / "model.safetensors"):
        (folder / file.name).symlink_to(file.resolve())
    splitter = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(TINY.vocab_size)}, unk_token="w0"))
    splitter.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    splitter.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({} if template is None else {"chat_template": template}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": list(end)}))
    return folder


def environment(changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """This process's environment, changed (None: the variable is removed); the package is importable from anywhere. Plans are kept,
    as for anyone who types commands (in this process, where tests replace what decides, they are not)."""
    merged: dict[str, str | None] = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", VARIABLE: None, **(changes or {})}
    return {name: value for name, value in merged.items() if value is not None}


FREELY = ("TENSOR_GRAPHS_", "XDG_", "PATH", "CC")
"""how the names of variables begin that the command reads when it uses them, and not while it is imported"""


@functools.cache
def _warm() -> Warm:
    made = Warm(environment())
    atexit.register(made.close)
    return made


def tg(
    *arguments: object,
    env: Mapping[str, str | None] | None = None,
    stdout: Any = subprocess.PIPE,
    before: Callable[[], None] | None = None,
    timeout: float = 120,
    anew: bool = False,
    typed: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end, in a process of its own.

    That process is forked from one which has imported the package; where the test is about how a process begins, a new one is
    started. env: changes to the environment; before: called in the new process; anew: start a new one in any case; typed: its
    standard input, where U+DCxx is the byte xx.
    """
    command, given = [*TG, *map(str, arguments)], typed.encode(errors="surrogateescape")
    with tempfile.TemporaryFile() as inside, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        inside.write(given)
        inside.seek(0)
        if anew or before is not None or stdout != subprocess.PIPE or not all(name.startswith(FREELY) for name in env or ()):
            return subprocess.run(command, env=environment(env), stdin=inside, stdout=stdout, stderr=subprocess.PIPE, text=True,
                                  preexec_fn=before, timeout=timeout, check=False)
        streams = (inside.fileno(), out.fileno(), err.fileno())
        code = _warm().run(command[len(TG):], environment(env), streams, timeout)
        said = [os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode() for file in (out, err)]
    return subprocess.CompletedProcess(command, code, *said)


def document(result: subprocess.CompletedProcess[str]) -> Any:
    """The one JSON document that a successful run printed; nothing else may stand on standard output."""
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def assert_complains(result: subprocess.CompletedProcess[str], *said: str, code: int = 1) -> None:
    """It failed with this exit code, on one screen, without a traceback, with all of `said`, and printed no result."""
    assert result.returncode == code, (result.returncode, result.stdout, result.stderr)
    assert not result.stdout
    assert "Traceback" not in result.stderr, result.stderr
    lines = result.stderr.splitlines()
    assert 1 <= len(lines) <= SCREEN, result.stderr
    assert lines[0].startswith("error: " if code != 2 else ("error: ", "Usage: ")), result.stderr
    for text in said:
        assert text in result.stderr, (text, result.stderr)
