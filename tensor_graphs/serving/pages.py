"""pages: which pages of a pool hold keys and values, who uses them, and which hold a prefix that a later prompt may share.

The tree of prefixes has a node for each full page: (page of the prefix before it, tokens in it). Sequences refer to pages; a page
without references stays in the tree until its memory is needed. A sequence that refers to a page refers to all pages before it, and
gives them back from the last to the first, so that the page that is released longest ago never has a child in the tree.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

ROOT = -1
"""parent of a prompt's first page in the tree"""

Key = tuple[int, tuple[Hashable, ...]]
"""page before, and the tokens of a full page, as `TokenSequence.names` has them"""


class Pages:
    """A pool of pages of `page` tokens each, with reference counts and a tree of prefixes."""

    def __init__(self, count: int, page: int) -> None:
        self.count, self.page = count, page
        self.references = [0] * count
        self._unused = list(range(count - 1, -1, -1))
        self._tree: dict[Key, int] = {}
        self._keys: dict[int, Key] = {}                     # of the pages in the tree
        self._released: OrderedDict[int, None] = OrderedDict()      # pages of the tree without references, longest ago first

    @property
    def free(self) -> int:
        """Number of pages without references."""
        return len(self._unused) + len(self._released)

    def take(self) -> int | None:
        """Return a page with one reference; None if all are in use. The prefix that was released longest ago makes room."""
        if self._unused:
            page = self._unused.pop()
        elif self._released:
            page, _ = self._released.popitem(last=False)
            del self._tree[self._keys.pop(page)]
        else:
            return None
        self.references[page] = 1
        return page

    def give_back(self, pages: Sequence[int]) -> None:
        """Drop one reference to each page of a sequence, or of its end."""
        for page in reversed(pages):
            self.references[page] -= 1
            if self.references[page]:
                continue
            if page in self._keys:
                self._released[page] = None
            else:
                self._unused.append(page)

    def shared(self, tokens: Sequence[Hashable]) -> list[int]:
        """Return the pages of the longest known prefix of `tokens`, full pages only, with a reference to each. At least one token
        is left over, so that it gets logits."""
        pages: list[int] = []
        for start in range(0, len(tokens) - self.page, self.page):
            page = self._tree.get((pages[-1] if pages else ROOT, tuple(tokens[start:start + self.page])))
            if page is None:
                break
            pages.append(page)
            self.references[page] += 1
            self._released.pop(page, None)
        return pages

    def full(self, pages: list[int], index: int, tokens: Sequence[Hashable]) -> None:
        """Put page number `index` of a sequence into the tree, where it holds the keys and values of these tokens. If the tree has
        such a page, the sequence uses that one instead, and gives its own back."""
        own, key = pages[index], (pages[index - 1] if index else ROOT, tuple(tokens))
        page = self._tree.setdefault(key, own)
        if page == own:
            self._keys[own] = key
            return
        self.references[page] += 1
        self._released.pop(page, None)
        pages[index] = page
        self.give_back([own])
