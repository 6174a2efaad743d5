"""stop_texts: cuts a text, which arrives in pieces of any size, before its first stop text."""

from __future__ import annotations

from collections.abc import Sequence

from tensor_graphs.argument_checks import ArgumentError


class UntilStop:
    """The text of the pieces up to the first stop text; `stopped` is True once a stop text has occurred.

    The text ends at the first character that completes a stop text, and is cut before that stop text. If one character completes
    several, the longest counts. So the result does not depend on how the text is divided into pieces. Raises ArgumentError for a
    stop text that is empty or no string.
    """

    def __init__(self, stop_texts: Sequence[str] = ()) -> None:
        if isinstance(stop_texts, str) or not all(isinstance(text, str) and text for text in stop_texts):
            raise ArgumentError(f"stop texts are {stop_texts!r:.80}\n  fix: a list of texts that are not empty, like ['\\n']")
        self.stop_texts = tuple(stop_texts)
        self.stopped = False
        self._held = ""

    def push(self, piece: str) -> str:
        """Return the text that is certain after this piece. An end that may begin a stop text is held back."""
        if self.stopped:
            return ""
        text = self._held + piece
        matches = [(at + len(stop), -len(stop)) for stop in self.stop_texts if (at := text.find(stop)) >= 0]
        if matches:
            end, length = min(matches)
            self.stopped, self._held = True, ""
            return text[: end + length]
        held = max((n for stop in self.stop_texts for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
        certain = len(text) - held
        self._held = text[certain:]
        return text[:certain]

    def finish(self, piece: str = "") -> str:
        """Return the certain text after the last piece, including text that was held back."""
        text = self.push(piece)
        rest, self._held = self._held, ""
        return text + rest
