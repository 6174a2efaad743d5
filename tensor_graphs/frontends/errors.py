"""errors: what can be wrong with a model folder or a request from outside; each message names the file, the thing in it and the
fix."""

from __future__ import annotations

from pathlib import Path

from tensor_graphs.errors import FileError


class FrontendError(FileError):
    """A folder, a file or an argument that cannot be read as what it should be."""


class FolderError(FrontendError):
    """A model folder that is missing, or a file in it that is missing or unreadable."""


class PublishedFileError(FrontendError):
    """A file of a published model that says something wrong; the fix is the file as it was published, where nothing else is."""

    def __init__(self, message: str, *, file: str | Path | None = None, fix: str | None = None) -> None:
        again = None if file is None else f"take {Path(file).name} as it was published with the weights"
        super().__init__(message, file=file, fix=fix or again)


class ConfigError(PublishedFileError):
    """A configuration that lacks a value, holds one of the wrong kind, or asks for something that is not supported."""


class FamilyRowError(FrontendError):
    """A row of a family, registered by a user's module, that does not describe a model."""


class TokenizerError(PublishedFileError):
    """A tokenizer or a chat template that is missing, unreadable or refuses its input."""


class ConversationError(FrontendError):
    """A conversation that is longer than the cache, or a session of which nobody knows what its caches hold.

    needed: positions that the cache needs for it; 0: that is not the trouble.
    """

    def __init__(self, message: str, *, fix: str, needed: int = 0) -> None:
        super().__init__(message, fix=fix)
        self.needed = needed


class SamplingError(FrontendError):
    """Sampling settings out of range, or logits from which nothing can be drawn."""
