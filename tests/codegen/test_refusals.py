"""What is not lowered is an exception with the reason, which caches keep."""

from __future__ import annotations

import pytest

from tensor_graphs.codegen.refusals import TooManyTurns, cached, or_none, refused, why_not
from tensor_graphs.kernels.kernel import NotLowered
from tensor_graphs.language.errors import LanguageError


def test_a_refusal_is_worked_out_once_and_raised_each_time_with_its_class_and_message() -> None:
    asked = []

    @cached(maxsize=8)
    def halves(number: int) -> int:
        asked.append(number)
        if number % 2:
            raise TooManyTurns(f"{number} is odd")
        return number // 2

    for _ in range(2):
        with pytest.raises(TooManyTurns, match="3 is odd"):
            halves(3)
        assert halves(8) == 4 and or_none(halves, 3) is None and why_not(halves, 3) == "3 is odd" and why_not(halves, 8) is None
    assert asked == [3, 8]


def test_another_error_is_neither_kept_nor_taken_for_a_refusal() -> None:
    asked = []

    @cached(maxsize=8)
    def fails() -> None:
        asked.append(0)
        raise KeyError("x")

    for _ in range(2):
        with pytest.raises(KeyError):
            or_none(fails)
    assert len(asked) == 2


@pytest.mark.parametrize(("error", "kind"), [(NotLowered, NotLowered), (TooManyTurns, TooManyTurns), (LanguageError, NotLowered)])
def test_a_refusal_says_where_and_keeps_its_class(error: type[Exception], kind: type[Exception]) -> None:
    with pytest.raises(NotLowered, match=r"^in its step: (.|\n)*of size 0") as caught, refused("in its step: "):
        raise error("of size 0")
    assert type(caught.value) is kind
