"""paths/size_cells.py: cells fill a box, each size has one, and what does not fill a box is refused."""

from __future__ import annotations

import itertools
import random

import pytest

from tensor_graphs.paths.size_cells import MOST_CELLS, Cell, Cells


def cell(*ranges: tuple[int, int]) -> Cell:
    return Cell(tuple((name, *ends) for name, ends in zip("abc", ranges, strict=False)))


def cut(rng: random.Random, whole: Cell, times: int) -> list[Cell]:
    """A box in pieces, by random cuts."""
    pieces = [whole]
    for _ in range(times):
        piece = pieces.pop(rng.randrange(len(pieces)))
        axis = rng.randrange(len(piece.ranges))
        name, low, high = piece.ranges[axis]
        at = rng.randint(low, high)
        halves = [(name, low, at - 1), (name, at, high)] if low < at else [(name, low, high)]
        pieces += [Cell((*piece.ranges[:axis], half, *piece.ranges[axis + 1:])) for half in halves]
    return pieces


def test_each_size_is_found_in_the_cell_that_holds_it() -> None:
    rng = random.Random(3)
    for dims, most in ((1, 40), (2, 12), (3, 6)):
        for _ in range(10):
            pieces = cut(rng, cell(*[(rng.randint(0, 2), most)] * dims), 8)
            cells = Cells(pieces)
            for point in itertools.product(*(range(low, high + 1) for _, low, high in cells.box.ranges)):
                sizes = dict(zip("abc", point, strict=False))
                assert pieces[cells.index(sizes)].holds(sizes) and sum(c.holds(sizes) for c in pieces) == 1


def test_sizes_beyond_the_box_have_the_cell_at_its_border() -> None:
    cells = Cells([cell((2, 4)), cell((5, 9))])
    assert [cells.index({"a": n}) for n in (0, 2, 5, 9, 100)] == [0, 0, 1, 1, 1] and Cells([Cell()]).index({"a": 3}) == 0


@pytest.mark.parametrize(("cells", "message"), [
    ([cell((1, 4)), cell((6, 9))], r"do not fill a box: a = 1\.\.4; a = 6\.\.9"),
    ([cell((1, 4)), cell((4, 9))], r"overlap: a = 1\.\.4; a = 4\.\.9"),
    ([cell((1, 1), (1, 9)), cell((2, 2), (1, 8))], "do not fill a box"),
    ([cell((1, 4)), Cell()], "are of different dims"),
    ([Cell(), Cell()], "2 paths, and no dim that says which"),
    ([cell((4, 1))], r"do not fill a box: a = 4\.\.1"),
    ([Cell((("a", 1, 2), ("a", 1, 2)))], "1 cells over the dims a, a: at most "),
    ([cell((n, n)) for n in range(MOST_CELLS + 1)], f"{MOST_CELLS + 1} cells over the dims a"),
], ids=lambda case: "")
def test_what_does_not_fill_a_box_is_refused(cells: list[Cell], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Cells(cells)


def test_cells_meet_are_joined_and_know_their_largest_sizes() -> None:
    assert cell((1, 4), (1, 9)).meet(cell((3, 8), (2, 2))) == cell((3, 4), (2, 2)) and cell((1, 4)).meet(cell((5, 8))) is None
    assert cell((1, 4), (1, 9)).joined(cell((5, 8), (1, 9))) == cell((1, 8), (1, 9)) == cell((5, 8), (1, 9)).joined(
        cell((1, 4), (1, 9)))
    assert cell((1, 4), (1, 9)).joined(cell((5, 8), (1, 8))) is None and cell((1, 4)).joined(cell((6, 8))) is None
    assert cell((17, 64)).largest({"a": 100, "m": 5}) == {"a": 64, "m": 5} and cell((17, 64)).largest({"a": 10}) == {"a": 17}
    assert Cell().largest({"a": 100}) == {"a": 100} and not Cell().dims and str(cell((1, 1), (2, 9))) == "a = 1, b = 2..9"


def test_how_far_sizes_are_from_a_cell() -> None:
    near = cell((1, 4), (7, 9))
    assert near.distance({"a": 2, "b": 8}) == 0.0 < near.distance({"a": 5, "b": 8}) < near.distance({"a": 5, "b": 3})


def test_a_box_of_two_dims_has_a_picture() -> None:
    cells = Cells([cell((1, 1), (1, 64)), cell((2, 8), (1, 15)), cell((2, 8), (16, 64))])
    assert cells.map() == ["          b = 1..15  b = 16..64",
                           "   a = 1  A          A",
                           "a = 2..8  B          C"]
    assert cells.where(cells.cells[1]) == "B: a = 2..8, b = 1..15: "
    assert Cells([cell((1, 4)), cell((5, 9))]).map() == [] == Cells([cell((1, 4), (1, 4))]).map()
    assert Cells([cell((1, 4)), cell((5, 9))]).where(cell((5, 9))) == "a = 5..9: " and Cells([Cell()]).where(Cell()) == ""
