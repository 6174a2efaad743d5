"""Every family of models, with parts of it on another device, gives the bits that it gives on one."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers
from family_cases import DECODERS, ENCODERS, Case

from tensor_graphs.frontends.huggingface.load import model_graph
from tests.runtime.test_two_devices import the_same_on_two_devices

ROWS: dict[str, Case] = {case.family: case for case in reversed((*DECODERS, *ENCODERS))}
"""the first case of each family; that each family has one is tested in test_families.py"""


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("family", sorted(ROWS))
def test_a_family_with_parts_on_another_device_says_the_same(family: str, tmp_path: Path) -> None:
    case = ROWS[family]
    getattr(transformers, case.config + "Config")(**case.settings).save_pretrained(tmp_path)
    the_same_on_two_devices(model_graph(tmp_path, max_positions=24), ("fake", "numpy"), len(family), (3, 1))
