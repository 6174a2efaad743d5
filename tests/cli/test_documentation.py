"""docs/cli.md names every verb, every option, and every key of the documents that verbs print."""

from __future__ import annotations

import re

import pytest
import typer.main

from tensor_graphs.cli.main import VERBS, app
from tensor_graphs.kernels.registry import DEFAULT_BACKENDS
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


def commands(command: object) -> list[object]:
    """A command and those inside of it."""
    return [command, *(each for inner in getattr(command, "commands", {}).values() for each in commands(inner))]


def test_every_verb_has_the_same_backends_by_default() -> None:
    from tensor_graphs.cli.options import backends

    params = [p for verb in COMMANDS.values() for c in commands(verb) for p in c.params if "--backends" in p.opts]  # type: ignore[attr-defined]
    assert len(params) >= 6 and {p.default for p in params} == {None} and backends(None) == DEFAULT_BACKENDS
    assert {f"(default: {','.join(DEFAULT_BACKENDS)})" in p.help for p in params} == {True}
    *first, last = DEFAULT_BACKENDS
    assert f"without it {', '.join(first)} and {last}" in SHARED


def test_every_verb_that_looks_at_kernels_imports_files() -> None:
    importing = {name for name, command in COMMANDS.items() if "--import" in options(command)}
    assert importing >= {"run", "embed", "list-paths", "profile", "explain", "conformance", "db", "show", "equal", "rewrites"}
    inner = {name for name, c in COMMANDS["db"].commands.items() if any("--import" in p.opts for p in c.params)}
    assert inner >= {"best", "leaderboard", "retry", "drain"}


@pytest.mark.parametrize("verb", sorted(COMMANDS))
def test_every_verb_has_a_sample_and_takes_json(verb: str) -> None:
    assert f"$ tg {verb} " in SECTION[verb] or f"$ tg {verb}\n" in SECTION[verb]
    inner = getattr(COMMANDS[verb], "commands", {"": COMMANDS[verb]})
    for name, command in inner.items():
        assert any("--json" in p.opts for p in command.params), (verb, name)
