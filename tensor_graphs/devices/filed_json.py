"""filed_json: cache of computed values in the user's cache folder, as JSON. A damaged file is replaced."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from tensor_graphs.devices.checksummed_files import read, user_place


def filed(kind: str, key: str, compute: Callable[[], Any], most: int) -> Any:
    """Return the value that `compute` returns, as JSON reads it back: from the cache folder, or computed now. kind: name of the
    folder. key: text that determines the value. most: size limit of the folder [bytes]; the least recently used files are removed.
    """
    path = user_place(kind, f"{hashlib.sha256(key.encode()).hexdigest()}.json")
    content = None if path is None else read(path)
    if content is None:
        content = json.dumps(compute()).encode()
        if path is not None:
            from tensor_graphs.devices.write_checksummed_files import keep  # a door: most values are on file

            keep(path, [content], most)
    return json.loads(content)
