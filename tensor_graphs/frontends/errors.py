"""errors: faults in a model folder or in a request's arguments; each message names the file, the faulty part of it and the fix."""

from __future__ import annotations

from pathlib import Path

from tensor_graphs.errors import FileError


class FrontendError(FileError):
    """A folder, a file or an argument that is not of the expected form."""


class FolderError(FrontendError):
    """A missing model folder, or a missing or unreadable file in it."""


class PublishedFileError(FrontendError):
    """A file of a published model with faulty content. If no other fix is given, the fix is to fetch the file again."""

    def __init__(self, message: str, *, file: str | Path | None = None, fix: str | None = None) -> None:
        again = None if file is None else f"take {Path(file).name} as it was published with the weights"
        super().__init__(message, file=file, fix=fix or again)


class ConfigError(PublishedFileError):
    """A configuration with a missing value, a value of the wrong type, or a setting that is not supported."""


class FamilyRowError(FrontendError):
    """A row of a model family, registered by a user's module, that does not describe a model."""


class TokenizerError(PublishedFileError):
    """A tokenizer or chat template that is missing or unreadable, or that refuses its input."""


class ConversationError(FrontendError):
    """A conversation that is longer than the cache, or a session whose caches hold unknown tokens.

    needed: number of positions that the cache needs; 0 if its length is not the fault.
    """

    def __init__(self, message: str, *, fix: str, needed: int = 0) -> None:
        super().__init__(message, fix=fix)
        self.needed = needed


class SamplingError(FrontendError):
    """A sampling setting out of range, or logits from which no token can be drawn."""
