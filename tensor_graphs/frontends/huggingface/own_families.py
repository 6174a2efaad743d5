"""own_families: rows of families that a user's module registers, next to those of the package (families.py).

    from tensor_graphs.frontends.huggingface.families import LLAMA
    from tensor_graphs.frontends.huggingface.own_families import register_family

    register_family(LLAMA.but("my_llama", settings={"rope_theta": 500_000.0}))

A module is imported by `tg run FOLDER --import my_family.py`, or by Python's `import`. Its row is tried on its defaults, so that a
mistake in it is named when it is registered.
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
from tensor_graphs.frontends.settings import Section
from tensor_graphs.models.transformer import TensorNames

OWN: dict[str, tuple[Family, str]] = {}
"""model_type of config.json -> the registered row, and the key of the object that has its settings, as in MODEL_TYPES"""

NEEDED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "hidden_act",
          "max_position_embeddings", "eps", "tie_word_embeddings")
"""settings that the facts of every family are made of"""

_PAGE = "docs/adding_a_model.md says what a row holds"


def register_family(row: Family) -> Family:
    """Let folders of the row's model types load, from now on; a second row of a model type replaces the first.

    Raises FamilyRowError for what is no row, for a model type that the package knows, and for a row that does not describe a model
    on its own defaults.
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
    """The configuration of a model type in `OWN`. Raises ConfigError, and FamilyRowError where its functions fail on it."""
    row, within = OWN[kind]
    with _mistakes_named(row, str(config.path)):
        return read_family(config, row, within)


@contextmanager
def _mistakes_named(row: Family, where: str) -> Iterator[None]:
    """Context manager: raise FamilyRowError for an exception of the row's functions."""
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
    """Raise FamilyRowError for what is no row, and for a field of another kind."""
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
