"""serving/pages.py: no page is lost or used twice, and a page of the tree holds the tokens that its key says."""

from __future__ import annotations

import random

from tensor_graphs.serving.pages import ROOT, Pages


def check(pages: Pages, users: list[list[int]]) -> None:
    """Assert that references count the users, that no page is lost, and that whoever refers to a page of the tree may reach it."""
    for page in range(pages.count):
        assert pages.references[page] == sum(page in user for user in users)
    assert pages.free == sum(not count for count in pages.references)
    for (parent, tokens), page in pages._tree.items():
        assert len(tokens) == pages.page and pages._keys[page] == (parent, tokens)
        assert parent == ROOT or parent in pages._keys
        assert parent == ROOT or pages.references[parent] >= pages.references[page]


def test_a_thousand_sequences_that_come_grow_and_go_leak_nothing() -> None:
    draw, pages = random.Random(0), Pages(40, 4)
    users: list[tuple[list[int], list[int]]] = []
    for _ in range(1000):
        tokens = [draw.randrange(2) for _ in range(draw.randrange(1, 30))]
        table = pages.shared(tokens)
        start = len(table)
        while len(table) * 4 < len(tokens) and (page := pages.take()) is not None:
            table.append(page)
        for index in range(start, min(len(table), len(tokens) // 4)):
            pages.full(table, index, tokens[4 * index:4 * index + 4])
        users.append((tokens, table))
        while users and (pages.free < 10 or draw.random() < 0.4):
            pages.give_back(users.pop(draw.randrange(len(users)))[1])
        check(pages, [table for _, table in users])
    for _, table in users:
        pages.give_back(table)
    check(pages, [])
    assert pages.free == 40


def test_a_prefix_is_shared_by_full_pages_and_one_token_is_left_over() -> None:
    pages = Pages(8, 2)
    table = [pages.take() or 0 for _ in range(3)]
    for index in range(2):
        pages.full(table, index, (5, 6, 7, 8)[2 * index:2 * index + 2])
    assert pages.shared([5, 6, 7, 8]) == table[:1]
    assert pages.shared([5, 6, 7, 8, 9]) == table[:2]
    assert pages.shared([6, 5, 7]) == []


def test_two_that_computed_one_prefix_end_up_with_one_copy() -> None:
    pages = Pages(4, 2)
    first, second = [pages.take() or 0], [pages.take() or 0]
    pages.full(first, 0, (1, 2))
    pages.full(second, 0, (1, 2))
    assert first == second and pages.free == 3


def test_released_prefixes_make_room_oldest_first_and_children_before_parents() -> None:
    pages = Pages(3, 1)
    table = [pages.take() or 0 for _ in range(3)]
    for index in range(3):
        pages.full(table, index, (index,))
    pages.give_back(table)
    assert pages.take() == table[2] and pages.shared([0, 1, 2, 3]) == table[:2]
    assert pages.take() is None
