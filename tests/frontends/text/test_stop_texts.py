"""frontends/text/stop_texts.py: text ends before its first stop text, whatever the pieces that it comes in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensor_graphs.argument_checks import ArgumentError
from tensor_graphs.frontends.text.stop_texts import UntilStop

LETTERS = st.text("abc", max_size=12)
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), max_size=3)


def until(text: str, stops: list[str]) -> str:
    """The oracle: the shortest beginning of the text that ends with a stop text, without the longest that it ends with."""
    for end in range(1, len(text) + 1):
        lengths = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if lengths:
            return text[: end - max(lengths)]
    return text


@given(pieces=st.lists(LETTERS, max_size=6), stops=STOPS)
def test_pieces_give_the_text_before_the_first_stop_text(pieces: list[str], stops: list[str]) -> None:
    text, cut = "".join(pieces), UntilStop(stops)
    shown = ""
    for piece in pieces:
        shown += cut.push(piece)
        assert until(text, stops).startswith(shown)               # nothing is shown that is to be cut
    stopped = cut.stopped
    assert shown + cut.finish() == until(text, stops) == UntilStop(stops).finish(text)
    assert stopped == any(stop in text for stop in stops)


def test_only_what_may_begin_a_stop_text_is_held_back() -> None:
    cut = UntilStop(["\n\n", "User:"])
    assert [cut.push(piece) for piece in ("one\n", "two U", "ser", "x Us", "er: no", "more")] == [
        "one", "\ntwo ", "", "Userx ", "", ""]
    assert cut.stopped and cut.finish() == ""


@pytest.mark.parametrize("wrong", [[""], "text", [3]], ids=str)
def test_what_is_no_list_of_texts_is_refused(wrong: object) -> None:
    with pytest.raises(ArgumentError, match=r"stop texts are .*\n  fix: a list of texts that are not empty"):
        UntilStop(wrong)
