"""chat_template: renders the prompt of a chat by the template in a model folder, which is untrusted code.

A template is a program (Jinja). It gets plain data only and runs in jinja2's sandbox, in a process of its own (`template_process`)
with limits on processor time, memory and the length of its output, so it always ends. Limits inside one process would have to cover
each filter, method and operator that can multiply a text or a loop; limits on a process cover all of them.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensor_graphs.frontends.errors import TokenizerError

CPU_SECONDS = 2
"""Processor seconds for one rendering; a template for a chat of a thousand messages takes a few hundredths."""
WALL_SECONDS = 60.0
"""Seconds by the clock for one rendering, on a machine with other work; then its process is ended."""
MEMORY = 1 << 30
"""Bytes of address space for one rendering, Python and jinja2 included."""
MOST_TEXT = 1 << 24
"""Largest length of a prompt in characters: more than any model has positions for."""

_PROCESS = Path(__file__).with_name("template_process.py")


def render(template: str, folder: Path, variables: Mapping[str, Any]) -> str:
    """Return the text that a chat template renders from plain data (JSON types). folder: the template's model folder, for errors.

    Raises TokenizerError for a template that is malformed, fails, refuses the messages or exceeds a limit, and for variables that
    are no plain data.
    """
    try:
        asked = json.dumps({"path": [p for p in sys.path if p], "template": template, "variables": variables,
                            "cpu_seconds": CPU_SECONDS, "memory": MEMORY, "most_text": MOST_TEXT})
    except (TypeError, ValueError, RecursionError) as error:
        raise TokenizerError(f"what is given to the chat template is no plain data: {error}", file=folder,
                             fix="texts, numbers, booleans, None, lists and dicts of them") from None
    try:
        # a session of its own: Ctrl-C in the terminal is for the command, which ends this process when it ends itself
        done = subprocess.run([sys.executable, "-I", "-S", "-X", "utf8", str(_PROCESS)], input=asked.encode(),
                              capture_output=True, timeout=WALL_SECONDS, check=False, start_new_session=True)
    except subprocess.TimeoutExpired:
        raise _beyond(f"{WALL_SECONDS:g} s", folder) from None
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise _beyond(f"{CPU_SECONDS} s of processor time", folder)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise TokenizerError(f"the chat template ended the process that renders it (exit code {done.returncode})"
                             f"{': ' + lines[-1][:200] if lines else ''}", file=folder, fix=_FIX) from None
    if "text" in answer:
        return str(answer["text"])
    raise _error(answer, folder)


_FIX = "this is no template of a published model: fetch the folder anew, or write a template of your own (chat_template.jinja)"


def _beyond(limit: str, folder: Path) -> TokenizerError:
    return TokenizerError(f"the chat template takes more than {limit}", file=folder, fix=_FIX)


def _error(answer: Mapping[str, Any], folder: Path) -> TokenizerError:
    """Return the error for the failure that `template_process.rendered` reports."""
    kind, why = answer["wrong"], answer.get("why", "")
    if kind == "memory":
        return _beyond(f"{MEMORY >> 20} MiB of memory", folder)
    if kind == "long":
        return _beyond(f"the {MOST_TEXT} characters that a prompt may have", folder)
    if kind == "refused":
        return TokenizerError(f"the chat template refuses the messages: {why}", file=folder)
    if kind == "syntax":
        return TokenizerError(f"the chat template is wrong at line {answer['line']}: {why}", file=folder)
    if kind == "failed":
        return TokenizerError(f"the chat template fails: {why}", file=folder)
    return TokenizerError(f"the chat template fails on these messages: {why}", file=folder,
                          fix='messages look like [{"role": "user", "content": "…"}]')
