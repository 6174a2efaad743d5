"""every_verb.py starts every verb that the command has."""

from __future__ import annotations

from pathlib import Path

from tensor_graphs.cli.main import command
from tests.cli.command import environment
from tests.cli.every_verb import calls, complaint, verbs


def test_there_is_a_call_of_each_verb(tmp_path: Path) -> None:
    assert set(verbs(command())) == set(calls(tmp_path))


def test_a_verb_that_does_something_else_is_seen(tmp_path: Path) -> None:
    call = calls(tmp_path)["models",]
    assert complaint(["models"], call, environment()) == ""
    assert "exit code 2, expected 0 and 'gemma3'" in complaint(["no-such-verb"], call, environment())
