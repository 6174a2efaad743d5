"""kernels/pickled_kernel.py: a kernel of a session is made again from bytes, with all that it uses; what cannot be given away is
named."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.kernels import pickled_kernel, registry
from tensor_graphs.kernels.kernel import HostCall, Kernel, NativeCall, ParcelError, Spec
from tensor_graphs.kernels.pickled_kernel import pack, unpack

ROOT = Path(__file__).parents[2]
NAME = "numpy.parcelled"
CELLS = (
    """
import functools, math, threading
import numpy as np
import tensor_graphs as tg
from numpy import maximum as larger
""", """
TABLE = np.arange(3.0)
SCALE, lock = 1.5, threading.Lock()
DTYPE, N = tg.f32, tg.dim('n', 1, 8)
EVERYTHING = [lock]
""", """
def even(n): return n == 0 or odd(n - 1)
def odd(n): return n != 0 and even(n - 1)
""", """
def counted():
    n = 0
    def step(by=1, *, twice=True):
        nonlocal n
        n += by * (2 if twice else 1)
        return n
    return step
step = counted()
third = functools.partial(math.pow, 1 / 3)
""")
KERNEL = """
@tg.kernel("relu", name="numpy.parcelled", accepts=lambda spec: None if spec.inputs[0].dtype is DTYPE else str(N))
def parcelled(outs, ins, attrs):
    '''Uses what other cells define.'''
    {}
    larger(ins[0], 0, out=outs[0])
"""
USED = {
    "nothing": "pass",
    "a constant": "assert SCALE == 1.5",
    "an array": "assert TABLE.sum() == 3",
    "a module": "assert math.pi > 3",
    "functions that call one another": "assert even(10) and not even(7)",
    "a closure with a state": "assert step() >= 2",
    "a partial function": "assert third(2) < 1",
    "an inner function": "assert [f(1) for f in [lambda x: x + SCALE]] == [2.5]",
    "a name that is an attribute only": "assert not hasattr(attrs, 'lock') and attrs.keys is not None",
}


@pytest.fixture
def space() -> Iterator[dict[str, Any]]:
    """The names of a session in which all cells but the kernel's were run."""
    names: dict[str, Any] = {"__name__": "a_session"}
    for i, text in enumerate(CELLS):
        exec(compile(text, f"<cell {i}>", "exec"), names)
    yield names
    registry.unregister(NAME)
    pickled_kernel._spaces.clear()


def declared(space: dict[str, Any], uses: str) -> Kernel:
    exec(compile(KERNEL.format(uses), "<cell k>", "exec"), space)
    return registry.kernel_named(NAME)


def run(kernel: Kernel, x: np.ndarray) -> np.ndarray:
    call = kernel.build(Spec.of(tg.relu(tg.input("x", x.shape))))
    assert isinstance(call, HostCall)
    out = np.empty_like(x)
    call.run([out], [x], {})
    return out


@pytest.mark.parametrize("what", USED)
def test_a_kernel_comes_with_what_it_uses(what: str, space: dict[str, Any]) -> None:
    kernel = declared(space, USED[what])
    packed = pack(kernel)
    space.clear()                                                   # it stands on its own feet
    again, _ = unpack(packed)
    x = np.array([-1, 2], np.float32)
    np.testing.assert_array_equal(run(again, x), [0, 2])
    assert again.identity == kernel.identity and again.source == kernel.source and again.name == NAME
    specs = [Spec.of(tg.relu(tg.input("x", (2,), dtype))) for dtype in (tg.f32, tg.f64)]
    assert [again.accepts(s) for s in specs] == [None, "n"]


def test_another_process_makes_it_too(space: dict[str, Any], tmp_path: Path) -> None:
    kernel = declared(space, "\n    ".join(USED.values()))
    (tmp_path / "parcel").write_bytes(pack(kernel))
    program = ("import sys, numpy as np\nfrom tensor_graphs.kernels import pickled_kernel, registry\n"
               "kernel = registry.put(*pickled_kernel.unpack(open(sys.argv[1], 'rb').read()))\nx = np.array([-1, 2], np.float32)\n"
               "out = np.empty_like(x)\nkernel.build(None).run([out], [x], {})\nprint(kernel.identity, out.tolist())")
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "parcel")], cwd=ROOT, capture_output=True, text=True,
                          timeout=60, check=False)
    assert done.stdout.split(" ", 1) == [kernel.identity, "[0.0, 2.0]\n"], done.stderr


def test_a_c_kernel_of_a_session_and_a_composite_of_ones_own_come_too() -> None:
    text = r"""
import math
import tensor_graphs as tg
@tg.composite
def triple(x): return x * 3.0
SIZES = 1
def size(spec): return [SIZES * math.prod(spec.outputs[0].shape)]
tg.c_kernel(triple, entry="triple", dtypes=["f32"], ints=size, source='''
#include "tg.h"
TG_KERNEL(triple) { for (int64_t i = 0; i < ints[0]; i++) ((float *)ptr[0])[i] = 3 * ((float *)ptr[1])[i]; (void)floats; }
''')
"""
    space: dict[str, Any] = {"__name__": "a_session"}
    exec(text, space)
    try:
        kernel = registry.kernel_named("c.triple")
        again, _ = unpack(pack(kernel))
        spec = Spec.of(space["triple"](tg.input("x", (2, 3))))
        assert again.build(spec) == kernel.build(spec) and isinstance(again.build(spec), NativeCall)
        assert again.computes(spec) and again.identity == kernel.identity
    finally:
        registry.unregister("c.triple")


CANNOT = {
    "a lock": ("lock.acquire()", r"^numpy\.parcelled uses lock \(cannot pickle '_thread\.lock' object\), which no other process"),
    "a list of locks": ("EVERYTHING[0]", r"^numpy\.parcelled uses EVERYTHING \(cannot pickle"),
    "a class of the session": ("Local()", r"^the class 'Local' was defined in a session, where no other process finds it\n  fix: "),
    "a module that no file has": ("made", r"^the module 'made' cannot be imported by another process\n  fix: "),
}


@pytest.mark.parametrize("what", CANNOT)
def test_what_no_other_process_can_be_given_is_named(what: str, space: dict[str, Any]) -> None:
    uses, said = CANNOT[what]
    exec("class Local: pass", space)
    space["made"] = type(sys)("made")
    assert isinstance(space["lock"], type(threading.Lock()))
    with pytest.raises(ParcelError, match=said):
        pack(declared(space, uses))


def test_a_parcel_has_a_largest_size(space: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = declared(space, "assert TABLE.sum()")
    monkeypatch.setattr(pickled_kernel, "LARGEST", 100)
    with pytest.raises(ParcelError, match=r"hold 0 MB, more than the 0 MB that are given to another process\n  fix: "):
        pack(kernel)


def test_a_value_that_was_changed_after_the_declaration_is_said(space: dict[str, Any]) -> None:
    kernel = declared(space, "assert SCALE")
    space["lock"] = threading.Lock()                                # which it does not use
    pack(kernel)
    space["SCALE"] = 2.0
    with pytest.raises(ParcelError, match=r"^a value that numpy\.parcelled uses was changed after it was declared\n  fix: run"):
        pack(kernel)
