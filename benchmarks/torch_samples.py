"""torch_samples: PyTorch's samples of its ops (op_db) and modules (module_db), from the tests that its wheel contains."""

from __future__ import annotations

import sys
import types
import unittest

if "expecttest" not in sys.modules:  # torch's tests derive a class from it, which the samples do not use
    sys.modules["expecttest"] = types.ModuleType("expecttest")
    sys.modules["expecttest"].TestCase = unittest.TestCase  # type: ignore[attr-defined]
from torch.testing._internal.common_methods_invocations import op_db as op_db
from torch.testing._internal.common_modules import module_db as module_db
