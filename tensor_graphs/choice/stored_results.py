"""stored_results: values that take seconds to compute and do not depend on measurements, stored in the user's cache folder.

The predicted errors of a model's words and the texts that it writes are the same for every accuracy. Like plans, they are not
stored if TENSOR_GRAPHS_PLANS is off (storing.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import TypeVar

from tensor_graphs.choice.storing import is_on
from tensor_graphs.devices.checksummed_files import read, user_place
from tensor_graphs.devices.write_checksummed_files import keep

T = TypeVar("T")

MOST_BYTES = 16 << 20
"""most bytes of all values of one kind together; the least recently used ones are deleted"""


def stored(kind: str, key: object, compute: Callable[[], T]) -> T:
    """Return the value that is stored under a key, or compute and store it. Values are what JSON has. key: its `repr` identifies
    everything that the value depends on."""
    if not is_on():
        return compute()
    path = user_place(kind, f"{hashlib.sha256(repr(key).encode()).hexdigest()}.json")
    content = None if path is None else read(path)
    if content is not None:
        value: T = json.loads(content)
        return value
    value = compute()
    if path is not None:
        keep(path, [json.dumps(value).encode()], MOST_BYTES)
    return value
