"""docs/cli.md names every verb, every option, and every key of the documents that verbs print."""

from __future__ import annotations

import re

import pytest
import typer.main

from tensor_graphs.cli.main import VERBS, app
from tests.cli.command import ROOT

PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
SHARED, *SECTIONS = re.split(r"^## tg ", PAGE, flags=re.MULTILINE)
SECTION = {section.split("\n", 1)[0].strip(): section for section in SECTIONS}
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def options(command: object) -> set[str]:
    """The names of a command's options and of those of its sub-commands, as a person types them."""
    found = {name for p in command.params for name in p.opts if name.startswith("--")}  # type: ignore[attr-defined]
    for inner in getattr(command, "commands", {}).values():
        found |= options(inner)
    return found - {"--help", "--json"}


def test_the_verbs_are_those_of_the_page() -> None:
    assert set(SECTION) == set(COMMANDS) == {verb.replace("_", "-") for verb in VERBS}


@pytest.mark.parametrize("verb", sorted(COMMANDS))
def test_every_option_of_a_verb_is_explained_or_shared(verb: str) -> None:
    missing = {name for name in options(COMMANDS[verb]) if name not in SECTION[verb] and f"`{name}`" not in SHARED}
    assert not missing - {"--chat"}, missing                        # it is explained as --no-chat


@pytest.mark.parametrize("verb", sorted(COMMANDS))
def test_every_verb_has_a_sample_and_takes_json(verb: str) -> None:
    assert f"$ tg {verb} " in SECTION[verb] or f"$ tg {verb}\n" in SECTION[verb]
    inner = getattr(COMMANDS[verb], "commands", {"": COMMANDS[verb]})
    for name, command in inner.items():
        assert any("--json" in p.opts for p in command.params), (verb, name)
