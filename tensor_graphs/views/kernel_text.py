"""kernel_text: the text of a kernel: written by hand, or by a backend for the part that it computes."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import partial

from tensor_graphs.errors import close_to, listed
from tensor_graphs.kernels.kernel import Kernel, KernelError, Spec
from tensor_graphs.kernels.registry import backend_module, kernel_named
from tensor_graphs.paths.plan import Plan, Variant


@dataclass(frozen=True)
class KernelText:
    """The text of one kernel. what: the part that it was written for; "" where the text is the same for all."""

    kernel: str
    backend: str
    op: str
    identity: str
    module: str
    text: str
    what: str = ""
    steps: tuple[str, ...] = ()

    def lines(self) -> str:
        """Return the text for people, after its description as comments of its language."""
        c = "#include" in self.text or "/*" in self.text
        header = [f"{self.kernel}: {self.what or self.op} on {self.backend}, of {self.module}", f"identity {self.identity[:16]}"]
        header += [f"steps {listed(self.steps, 8)}"] if self.steps else []
        return "\n".join([*(f"{'//' if c else '#'} {line}" for line in header), self.text.rstrip(), ""])


def text_of(kernel: Kernel, spec: Spec | None = None, what: str = "", steps: tuple[str, ...] = ()) -> KernelText:
    """Return the text of a kernel. spec: what it is to compute, which a backend that writes its kernels (`text_of` of its module)
    needs. Raises KernelError."""
    writes = getattr(backend_module(kernel.backend), "text_of", None)
    if kernel.remade and spec is not None:
        writes = partial(importlib.import_module(kernel.module).text_of, kernel)
    if writes is None:
        return KernelText(kernel.name, kernel.backend, kernel.op, kernel.identity, kernel.module, kernel.source, "", steps)
    if spec is None:
        raise KernelError(f"{kernel.name} has no text of its own: {kernel.backend} writes it for the part that is computed\n"
                          "  fix: a graph whose plan uses it: "
                          f"tg show GRAPH --source {kernel.name} --backends {kernel.backend},numpy")
    return KernelText(kernel.name, kernel.backend, kernel.op, kernel.identity, kernel.module, writes(spec), what, steps)


def texts_named(name: str) -> list[KernelText]:
    """Return the texts of a kernel's name. Raises KernelError."""
    return [text_of(kernel_named(name))]


def texts_in(plan: Plan, v: Variant, name: str) -> list[KernelText]:
    """Return the texts of a step's name (`softmax.0`) in one variant of a plan, or of a kernel's: then one text for each part that
    the plan computes by it, where these differ. Raises KernelError."""
    steps = [i for i in (*v.program.instructions, *v.program.bind_instructions) if i.signature]
    meant = [i for i in steps if name in (i.label, i.kernel)]
    if not meant:
        names = [*dict.fromkeys(i.kernel for i in steps), *(i.label for i in steps)]
        near = close_to(name, names)
        raise KernelError(f"the plan has no step and no kernel named {name!r}\n  fix: "
                          + (f"did you mean {' or '.join(near)}?" if near else f"it has {listed(names, 12)}"))
    texts: dict[tuple[str, str], KernelText] = {}
    for i in meant:
        signature = v.program.signatures[i.signature]
        kernel = v.kernels[i.kernel]
        its = tuple(step.label for step in meant if (step.kernel, step.signature) == (i.kernel, i.signature))
        text = text_of(kernel, signature.spec, signature.title(), its)
        texts.setdefault((kernel.name, text.text), text)
    return list(texts.values())
