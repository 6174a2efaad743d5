"""Tuned kernels: a schedule is part of a kernel's identity, and text enough to make it anew where it is needed."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen import backend, schedule_actions, spec_to_loops, tuned_kernel
from tensor_graphs.codegen.schedule_actions import Again, Grain, IllegalAction
from tensor_graphs.kernels import registry
from tensor_graphs.kernels.kernel_origin import Origin, load, origin_of, out_of_reach
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language.node import Node

N = tg.dim("n", 1, 64)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    registry.made.clear()


def softmax(rows: object = 64) -> Node:
    return tg.softmax(tg.input("x", (rows, 96), tg.f32))           # type: ignore[arg-type]


def schedule(signature: Signature, *chosen: schedule_actions.Action) -> schedule_actions.Schedule:
    definition = spec_to_loops.definition_of(signature.spec)
    made = schedule_actions.seed(definition)
    for action in chosen:
        made = schedule_actions.changed(definition, made, action)
    return made


def test_the_schedule_is_part_of_the_identity() -> None:
    s = signature_of(softmax())
    schedules = schedule(s), schedule(s, Again(1, 0)), schedule(s, Grain(2048, 0))
    kernels = [tuned_kernel.tuned(s, each) for each in schedules]
    assert len({k.identity for k in kernels}) == len({k.name for k in kernels}) == 3
    again = tuned_kernel.tuned(s, schedule(s, Again(1, 0)))
    assert (again.identity, again.name) == (kernels[1].identity, kernels[1].name)
    assert tuned_kernel.schedule_of(again) == schedule(s, Again(1, 0))


def test_it_computes_its_signature_and_nothing_else() -> None:
    s = signature_of(softmax())
    kernel = tuned_kernel.tuned(s, schedule(s, Again(1, 0)))
    assert kernel.computes(s.spec) and kernel.accepts(s.spec) is None
    other = signature_of(softmax(65)).spec
    assert kernel.accepts(other) == "it was tuned for another softmax"
    assert not kernel.computes(signature_of(tg.gelu(tg.input("x", (64, 96), tg.f32))).spec)


def test_dims_are_known_by_their_place_and_not_by_their_names() -> None:
    s = signature_of(softmax(N))
    kernel = tuned_kernel.tuned(s, schedule(s, Again(1, 0)))
    assert kernel.accepts(signature_of(softmax(tg.dim("rows", 1, 64))).spec) is None
    assert kernel.accepts(signature_of(softmax(tg.dim("rows", 1, 32))).spec) is not None


def test_another_process_makes_it_of_its_text() -> None:
    s = signature_of(softmax())
    kernel = registry.know(tuned_kernel.tuned(s, schedule(s, Again(1, 0))))
    assert out_of_reach(kernel) is None and kernel in registry.all_kernels(("gen",))
    origin = origin_of(kernel)
    registry.made.clear()
    with pytest.raises(registry.KernelError):
        registry.kernel_named(kernel.name)
    load(Origin(*origin))
    made = registry.kernel_named(kernel.name)
    assert made is not kernel and made.identity == kernel.identity
    assert made in registry.matching(s.spec, registry.by_op(registry.all_kernels(("gen",))))


def test_the_text_shows_the_schedule_and_the_loops_as_it_arranges_them() -> None:
    s = signature_of(softmax())
    text = tuned_kernel.text_of(tuned_kernel.tuned(s, schedule(s, Again(1, 0))), s.spec)
    assert "Again 1 (value 0)" in text and text.count("f32_exp(") == 3      # registers of a sum, what is left, the quotient
    assert backend.text_of(s.spec).count("f32_exp(") == 1


def test_a_source_that_says_nothing_is_refused() -> None:
    for wrong in ("", "{}", '{"computes": "k", "op": "softmax", "actions": [{"action": "Fly"}]}'):
        with pytest.raises(IllegalAction):
            tuned_kernel.kernel_from(wrong).accepts(signature_of(softmax()).spec)


def test_one_that_a_later_generator_does_not_take_is_no_candidate() -> None:
    s = signature_of(softmax())
    kernel = tuned_kernel.tuned(s, (Grain(2048, 7),))
    assert "no number 7" in (kernel.accepts(s.spec) or "")


def test_it_runs_in_a_plan() -> None:
    s = signature_of(softmax())
    kernel = tuned_kernel.tuned(s, schedule(s, Again(1, 0)))
    call = kernel.build(s.spec)
    x = np.random.default_rng(0).normal(size=(64, 96)).astype(np.float32)
    out = np.empty_like(x)
    registry.make_images([call])
    library = registry.native_library()
    address = library.address(call.symbol, call.image)
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(address)
    function((ctypes.c_void_p * 2)(out.ctypes.data, x.ctypes.data), (ctypes.c_int64 * 1)(), (ctypes.c_double * 1)())
    e = np.exp(x - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(out, e / e.sum(axis=1, keepdims=True), rtol=1e-5)
