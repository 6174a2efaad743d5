"""user_families: rows of model families that users register, in addition to the built-in ones (families.py).

    from tensor_graphs.frontends.huggingface.families import LLAMA
    from tensor_graphs.frontends.huggingface.user_families import register_family

    register_family(LLAMA.but("my_llama", settings={"rope_theta": 500_000.0}))

The user's module is imported by `tg run FOLDER --import my_family.py`, or by Python's `import`. A row is tested on its defaults
when it is registered, so mistakes in it are reported then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tensor_graphs.errors import TensorGraphsError, close_to
from tensor_graphs.frontends.errors import FamilyRowError
from tensor_graphs.frontends.huggingface.config import FamilyConfig, read_family
from tensor_graphs.frontends.huggingface.families import MODEL_TYPES, Family, Maybe
from tensor_graphs.frontends.json_settings import Section
from tensor_graphs.models.transformer import TensorNames

OWN: dict[str, tuple[Family, str]] = {}
"""model_type in config.json -> (the registered row, key of the object that holds its settings), as in MODEL_TYPES."""

NEEDED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "hidden_act",
          "max_position_embeddings", "eps", "tie_word_embeddings")
"""Settings that the facts of every family are computed from."""

_PAGE = "docs/adding_a_model.md says what a row holds"


def register_family(row: Family) -> Family:
    """Register a row, so that folders of its model types load; a second row for a model type replaces the first. Return the row.

    Raises FamilyRowError for an object that is no row, for a built-in model type, and for a row that describes no model on its own
    defaults.
    """
    _check(row)
    types = dict(row.types) or {row.name: ""}
    taken = sorted(set(types) & set(MODEL_TYPES))
    if taken:
        raise _error(row, f"the model type {taken[0]!r} is one that the package knows",
                     "another name, or in `types` model types of its own")
    with _mistakes_named(row, "its defaults"):
        read_family(Section({}, Path(row.name)), row)
    for kind, within in types.items():
        OWN[kind] = (row, within)
    return row


def read_own(config: Section, kind: str) -> FamilyConfig:
    """Return the configuration of a model type in `OWN`. Raises ConfigError, and FamilyRowError where the row's code fails."""
    row, within = OWN[kind]
    with _mistakes_named(row, str(config.path)):
        return read_family(config, row, within)


@contextmanager
def _mistakes_named(row: Family, where: str) -> Iterator[None]:
    """Return a context manager that raises FamilyRowError for an exception of the row's functions."""
    try:
        yield
    except TensorGraphsError as error:
        if where != "its defaults":
            raise
        why = str(error).removeprefix(f"{type(error).__name__}: ").partition("\n")[0]
        raise _error(row, f"its defaults describe no model: {why}") from error
    except Exception as error:  # anyone's code
        raise _error(row, f"it fails on {where}: {type(error).__name__}: {error}") from error


def _check(row: Any) -> None:
    """Raise FamilyRowError for an object that is no row, and for a field of a wrong type."""
    if not isinstance(row, Family):
        raise FamilyRowError(f"{row!r:.80} is no row of a family",
                             fix="LLAMA.but(…) or Family(…) of tensor_graphs.frontends.huggingface.families")
    if not isinstance(row.name, str) or not row.name:
        raise _error(row, "a name is the model_type of config.json")
    if not isinstance(row.names, TensorNames):
        raise _error(row, f"names is {row.names!r:.60}", "TensorNames(…) of tensor_graphs.models.transformer")
    for field in ("settings", "keys", "refused", "rope", "types"):
        if not isinstance(getattr(row, field), Mapping):
            raise _error(row, f"{field} is {getattr(row, field)!r:.60}", "a dictionary")
    for field in ("facts", "renamed", "sliding", "rotates", "sparse"):
        if not callable(getattr(row, field)):
            raise _error(row, f"{field} is {getattr(row, field)!r:.60}", "a function of the settings")
    missing = [name for name in NEEDED if name not in row.settings]
    if missing:
        raise _error(row, f"the setting {missing[0]!r} is missing, of which the facts of every family are made",
                     f"a default for {', '.join(missing)}")
    for name, default in row.settings.items():
        if type(default) not in (int, float, bool, str, Maybe):
            raise _error(row, f"the default of {name} is {default!r:.60}",
                         "a number, a truth value, a text, or Maybe.WHOLE, Maybe.NUMBER or Maybe.LIST for what may be absent")
    stray = next((name for name in row.keys if name not in row.settings), None)
    if stray is not None:
        near = close_to(str(stray), row.settings)
        raise _error(row, f"keys names {stray!r}, which is no setting", f"did you mean {near[0]}?" if near else _PAGE)
    for name, key in row.keys.items():
        if not isinstance(key, str):
            raise _error(row, f"keys[{name!r}] is {key!r:.60}", "the key of config.json, like 'n_embd'")
    for key, values in row.refused.items():
        if not isinstance(values, tuple):
            raise _error(row, f"refused[{key!r}] is {values!r:.60}", "a tuple of the values that change nothing, like (False,)")


def _error(row: Family, what: str, fix: str = _PAGE) -> FamilyRowError:
    return FamilyRowError(f"the row of the family {row.name!r}: {what}", fix=fix)
