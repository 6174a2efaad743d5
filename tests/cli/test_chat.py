"""`tg chat`: turns by lines of standard input, and by hand in a terminal, where Ctrl-C stops an answer and not the chat."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import TG, document, environment, tg

SLOW = """
import time
from tensor_graphs.serving import generate

fast = generate.checked_token

def checked_token(outputs):
    time.sleep(0.1)
    return fast(outputs)

generate.checked_token = checked_token
"""
"""a module for --import that makes answers so slow that a person can interrupt one"""


def test_a_line_of_standard_input_is_a_turn_and_a_reset_forgets_them(wordy: Path) -> None:
    lines = "w9 w10\n\nw11\n/reset\nw9 w10\nw12"
    said = document(tg("chat", wordy, "--tokens", 5, "--system", "w7", "--json", typed=lines))
    turns = said["turns"]
    assert [t["prompt"] for t in turns] == ["w9 w10", "w11", "w9 w10", "w12"] and turns[0]["ids"] == turns[2]["ids"]
    # begin, system (3), user (3), the mark of the model; then what follows an answer, whose last token was not fed yet
    assert [t["fed_tokens"] for t in turns] == [9, 1 + 1 + 3 + 1, 9, 6] and {len(t["ids"]) for t in turns} == {5}
    assert [m["role"] for m in said["messages"]] == ["system", "user", "assistant", "user", "assistant"]
    assert said["messages"][-1]["content"] == turns[3]["text"] and {t["error"] for t in turns} == {None}
    alone = document(tg("run", wordy, "--prompt", "w9 w10", "--system", "w7", "--tokens", 5, "--json"))
    assert turns[0]["ids"] == alone["ids"] and turns[0]["text"] == alone["text"]


def test_lines_of_json_are_the_tokens_of_each_turn_and_a_stop_text_ends_an_answer(wordy: Path) -> None:
    asked = ("chat", wordy, "--tokens", 5, "--repetition-penalty", 1e6)
    whole = document(tg(*asked, "--json", typed="w9 w10\nw11"))
    stop = " ".join(whole["turns"][0]["text"].split()[2:4])
    *lines, last = map(json.loads, tg(*asked, "--jsonl", "--logprobs", "--stop", stop, typed="w9 w10\nw11").stdout.splitlines())
    first, second = last["turns"]
    assert first["ids"] == whole["turns"][0]["ids"][:4] and first["stopped"]
    assert first["text"] == last["messages"][1]["content"] == whole["turns"][0]["text"].partition(stop)[0]
    assert [line["turn"] for line in lines] == [0] * 4 + [1] * len(second["ids"])
    assert [line["id"] for line in lines] == first["ids"] + second["ids"]
    assert [line["logprob"] for line in lines] == first["logprobs"] + second["logprobs"]
    assert "".join(line["text"] for line in lines[:4]) == first["text"]


def test_a_turn_that_cannot_be_taken_is_named_and_the_chat_goes_on(wordy: Path) -> None:
    lines = "w9 \udcff\nw9\nw10\n/reset\nw9\n/help\n/nothing\n/exit\nw11\n"
    said = tg("chat", wordy, "--max-positions", 24, "--backends", "numpy", typed=lines)
    first, again, *none = said.stdout.splitlines()
    assert said.returncode == 1 and first == again and len(first.split()) == 24 - 5 + 1 and not none
    cut = "the conversation is longer than the 24 tokens that the cache holds\n"
    fix = f"  fix: /reset begins anew, or a chat with a longer cache: tg chat {wordy} --max-positions 48\n"
    for line in (
        "the text is not Unicode",
        f"the answer is cut: {cut}{fix}",
        f"the turn was not taken: {cut}{fix}A new conversation.\n",
        "Ctrl-C stops an answer",
        "There is no command /nothing; /help, /reset, /exit.",
    ):
        assert line in said.stderr, said.stderr
    assert said.stderr.count("fix: /reset") == 3 and "Traceback" not in said.stderr


TAKE_THE_TERMINAL = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
"""so that the keys of the terminal reach the command as signals"""


class Terminal:
    """A person at a terminal."""

    def __init__(self, *arguments: object) -> None:
        self.mine, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-ISc", TAKE_THE_TERMINAL, *TG, *map(str, arguments)],
            env=environment({"TERM": "dumb", "INPUTRC": os.devnull}),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.seen, self.read = "", 0

    def type(self, text: str) -> None:
        os.write(self.mine, text.encode())

    def see(self, pattern: str, seconds: float = 60) -> re.Match[str]:
        """Wait until the screen shows this behind what was seen before."""
        deadline = time.monotonic() + seconds
        os.set_blocking(self.mine, False)
        while True:
            try:
                self.seen += os.read(self.mine, 65536).decode(errors="replace").replace("\r", "")
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:                                           # the other end is closed
                seconds, deadline = 0, 0.0
            found = re.compile(pattern, re.DOTALL).search(self.seen, self.read)
            if found:
                self.read = found.end()
                return found
            assert time.monotonic() < deadline, (pattern, self.seen)


@pytest.fixture
def slow_chat(wordy: Path, tmp_path: Path) -> Iterator[Terminal]:
    (tmp_path / "slow.py").write_text(SLOW)
    made = Terminal("chat", wordy, "--import", tmp_path / "slow.py")
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()
        os.close(made.mine)


def test_ctrl_c_stops_an_answer_and_not_the_chat(slow_chat: Terminal) -> None:
    person = slow_chat
    person.see(r"wordy, a cache of 256 tokens\. /help says what can be typed\.\n> ")
    person.type("w9 w10\n")
    words = person.see(r"w9 w10\n((w\d+ ?){2})")[1].split()
    person.type("\x03")
    person.see(r"\n> ")
    person.type("\x03")                                               # where a turn is typed there is no answer to stop
    person.see(r"\nCtrl-D or /exit ends the chat\.\n> ")
    person.type("/reset\n")
    person.see(r"A new conversation\.\n> ")
    person.type('"""w9\nw10"""\n')                                    # the template's words are the same
    assert person.see(r'w10"""\n((w\d+ ?){2})')[1].split() == words
    os.kill(person.process.pid, signal.SIGINT)
    person.see(r"\n> ")
    person.type("\x04")
    assert person.process.wait(30) == 0
