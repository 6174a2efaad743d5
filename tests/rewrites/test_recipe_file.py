"""What was found of a region is found again in another process, from a file; whatever lies there."""

from __future__ import annotations

from pathlib import Path

import pytest

import tensor_graphs as tg
from tensor_graphs.devices.toolchain import ToolchainError
from tensor_graphs.rewrites import recipe_file
from tensor_graphs.rewrites.offer import Offer
from tensor_graphs.rewrites.recipe_file import kept
from tensor_graphs.rewrites.reword import offers
from tensor_graphs.rewrites.rules import ALL
from tests.rewrites.test_reword import chain, heads, mlp

GRAPHS = {"mlp": tg.graph(mlp()), "heads": tg.graph(heads()), "chain": tg.graph(chain()),
          "nothing": tg.graph(tg.softmax(tg.input("x", (3, 4))))}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(recipe_file, "default_cache", lambda: tmp_path / "native")
    return tmp_path / "recipes"


def never() -> list[Offer]:
    raise AssertionError("searched again")


def said(found: list[Offer]) -> list[object]:
    return [(o.operands, o.outputs, o.inside, [(x.outputs, x.rules, x.derivation, x.numeric_class) for x in o.others])
            for o in found]


@pytest.mark.parametrize("name", GRAPHS)
def test_what_was_found_is_read_and_not_searched_again(folder: Path, name: str) -> None:
    graph = GRAPHS[name]
    found = kept(graph, lambda: offers(graph, ALL))
    assert said(kept(graph, never)) == said(found) and bool(found) == (name != "nothing")
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"operands":[999],"outputs":[],"inside":[],"others":[]}]', "null", "\x00"])
def test_a_damaged_file_is_written_anew(folder: Path, text: str) -> None:
    graph = GRAPHS["mlp"]
    found = kept(graph, lambda: offers(graph, ALL))
    (file,) = folder.iterdir()
    file.write_text(text, encoding="utf-8")
    assert said(kept(graph, lambda: offers(graph, ALL))) == said(found) == said(kept(graph, never))


def test_other_code_searches_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = GRAPHS["mlp"]
    kept(graph, lambda: offers(graph, ALL))
    monkeypatch.setattr(recipe_file, "_code", lambda: "edited")
    with pytest.raises(AssertionError, match="searched again"):
        kept(graph, never)


def test_where_the_folder_cannot_be_used_nothing_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> Path:
        raise ToolchainError("not private")

    monkeypatch.setattr(recipe_file, "private_folder", refused)
    assert kept(GRAPHS["mlp"], lambda: offers(GRAPHS["mlp"], ALL)) and not folder.exists()
