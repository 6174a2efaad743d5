"""text_tokens: the tokens of a `.tg` text, and the error that shows a position in it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language.text_writer import NAME

_TOKEN = re.compile(rf"""
    (?P<space>[ \t\r]+) | (?P<comment>\#.*)
  | (?P<float>(?:\d+\.(?!\.)\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+))
  | (?P<int>\d+)
  | (?P<ref>%\d+)
  | (?P<name>{NAME}(?:\#[0-9a-f]{{12}}(?![0-9A-Za-z_]))?)
  | (?P<string>"(?:[^"\\]|\\.)*"(?:\#[0-9a-f]{{12}}(?![0-9A-Za-z_]))?)
  | (?P<op>\.\.|\*\*|//|<=|>=|==|!=|[-+*/%@&|^~<>()\[\]{{}},;=:.])
""", re.VERBOSE | re.DOTALL | re.ASCII)
_SHOWN = 100
_BRACKETS = {")": "(", "]": "[", "}": "{"}


class TextError(TensorGraphsError):
    """A `.tg` text that is no graph, with the position (file, line, column), the line and a caret, the fault, and a fix."""

    def __init__(self, message: str, filename: str, line: int, column: int, source: str, fix: str | None = None) -> None:
        self.filename, self.line, self.column = filename, line, column
        shown, caret = _window(source, column - 1)
        text = f"{filename}:{line}:{column}: {message}\n    {shown}\n    {' ' * caret}^"
        super().__init__(text + (f"\n  fix: {fix}" if fix else ""))


def _window(source: str, at: int) -> tuple[str, int]:
    """Return at most _SHOWN characters of a line around position `at`, printable, and the index of `at` in them."""
    start = max(0, min(at - _SHOWN // 2, len(source) - _SHOWN)) if len(source) > _SHOWN else 0
    part = "".join(c if c.isprintable() else " " if c == "\t" else "·" for c in source[start:start + _SHOWN])
    left, right = "…" if start else "", "…" if start + _SHOWN < len(source) else ""
    return f"{left}{part}{right}".rstrip(), at - start + len(left)


@dataclass(frozen=True, slots=True)
class Token:
    """A token. kind: float, int, ref, name, string, op, `end` of a line, or `eof`."""

    kind: str
    text: str
    line: int
    column: int


class Tokens:
    """The tokens of a text, cut one line at a time, so that the first mistake is the one that is reported."""

    def __init__(self, text: str, filename: str) -> None:
        self.filename = filename
        self.lines = text.removeprefix("\ufeff").split("\n")
        self.found: list[Token] = []
        self.at = 0
        self.read = 0                                              # lines that have been cut into tokens

    def error(self, message: str, token: Token | None = None, fix: str | None = None) -> TextError:
        """Return the error at a token (by default, the next one)."""
        t = token or self.peek()
        return TextError(message, self.filename, t.line, t.column, self.lines[t.line - 1].rstrip(), fix)

    def peek(self, ahead: int = 0) -> Token:
        while self.at + ahead >= len(self.found):
            if self.read == len(self.lines):
                return Token("eof", "", len(self.lines), len(self.lines[-1].rstrip()) + 1)
            self.found += self._cut(self.lines[self.read], self.read + 1)
            self.read += 1
        return self.found[self.at + ahead]

    def take(self) -> Token:
        token = self.peek()
        self.at += 1
        return token

    def accept(self, text: str) -> Token | None:
        token = self.peek()
        return self.take() if token.text == text and token.kind in ("op", "name") else None

    def expect(self, text: str, what: str | None = None) -> Token:
        token = self.accept(text)
        if token is None:
            raise self.unexpected(what or repr(text))
        return token

    def unexpected(self, wanted: str, token: Token | None = None, fix: str | None = None) -> TextError:
        """Return the error `expected …, found …`; at the end of a line, its fix names the bracket that is still open."""
        t = token or self.peek()
        if t.kind in ("end", "eof") and fix is None:
            opened = self._open_bracket(t.line)
            if opened is not None:
                fix = f"a statement is one line; the {opened.text!r} of column {opened.column} is not closed on it"
        return self.error(f"expected {wanted}, found {shown(t)}", t, fix or f"write {wanted}")

    def _open_bracket(self, line: int) -> Token | None:
        stack: list[Token] = []
        for token in self.found:
            if token.line == line and token.kind == "op":
                if token.text in _BRACKETS.values():
                    stack.append(token)
                elif token.text in _BRACKETS and stack and stack[-1].text == _BRACKETS[token.text]:
                    stack.pop()
        return stack[-1] if stack else None

    def _cut(self, line: str, number: int) -> list[Token]:
        tokens: list[Token] = []
        at = 0
        while at < len(line):
            m = _TOKEN.match(line, at)
            if m is None:
                bad = Token("bad", line[at], number, at + 1)
                if line[at] == '"':
                    raise self.error("the string is not closed on this line", bad, 'a " at its end')
                raise self.error(f"the character {line[at]!r} has no meaning here", bad,
                                 "names with such characters stand in quotes" if line[at].isalnum() else "a line without it")
            if m.lastgroup not in ("space", "comment"):
                tokens.append(Token(str(m.lastgroup), m.group(), number, at + 1))
            at = m.end()
        tokens.append(Token("end", "", number, len(line.rstrip()) + 1))
        return tokens


def shown(token: Token) -> str:
    """Return a token as text for a message: quoted, and short."""
    if not token.text:
        return "the end of the text" if token.kind == "eof" else "the end of the line"
    return repr(token.text if len(token.text) <= 40 else token.text[:40] + "…")
