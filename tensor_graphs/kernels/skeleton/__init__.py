"""skeleton: templates of a minimal conforming backend; `tg new-backend` writes a project from them.

In: a name and a folder.  Out: a package with a capability table, a view function and five kernels in plain numpy, a README with
the next steps, and a pyproject.toml with an entry point, by which tensor_graphs finds the backend once it is installed."""

from __future__ import annotations

import importlib.util
import keyword
from importlib.resources import files
from pathlib import Path

from tensor_graphs.kernels.kernel import KernelError
from tensor_graphs.kernels.registry import BACKENDS, GROUP

FILES = {"README.md": "README.md", "pyproject.toml": "pyproject.toml", "__init__.py": "{name}/__init__.py",
         "backend.py": "{name}/backend.py", "ops.py": "{name}/ops.py"}
"""template name (without .j2) -> path of the written file in the project"""


def check_name(name: str) -> None:
    """Raise KernelError unless a backend and its package can have this name."""
    if not name.isidentifier() or keyword.iskeyword(name) or not name.isascii():
        raise KernelError(f"a backend cannot be named {name!r}: it is no Python name\n  fix: letters, digits and _, like my_own")
    if name in BACKENDS:
        raise KernelError(f"there is a backend {name!r} already ({BACKENDS[name]})\n  fix: another name; known are "
                          f"{', '.join(sorted(BACKENDS))}")
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.origin is not None:
        raise KernelError(f"a Python module {name!r} exists already ({spec.origin}), and the backend's package would hide it\n"
                          f"  fix: another name, like my_{name}")


def write_skeleton(name: str, into: Path) -> list[Path]:
    """Write the project into the folder `into`/`name` and return its files. Raises KernelError when the name or folder is taken."""
    from jinja2 import Environment, StrictUndefined

    check_name(name)
    project = into / name
    if project.exists():
        raise KernelError(f"{project} exists already, and nothing is overwritten\n  fix: another name, or --into another folder")
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    texts = {place.format(name=name): environment.from_string((files(__name__) / f"{template}.j2").read_text(encoding="utf-8"))
             .render(name=name, group=GROUP) for template, place in FILES.items()}
    written = []
    for place, text in texts.items():
        file = project / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        written.append(file)
    return written
