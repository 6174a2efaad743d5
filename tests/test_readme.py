"""The example on the first page is run as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent


def test_the_example_of_the_readme_runs_and_is_right():
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)
    probabilities = np.asarray(names["probabilities"])
    assert probabilities.shape == (7, 256)
    np.testing.assert_allclose(probabilities, 1 / 256, rtol=1e-5)         # equal rows of w: equal probabilities


def test_every_file_that_the_documents_link_to_exists():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    links = [(page, target) for page in pages
             for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))]
    assert len(links) > 10
    missing = [f"{page.name}: {target}" for page, target in links if not (page.parent / target).exists()]
    assert not missing, missing
