"""Shapes of tiles are data: the rule's gives the rule's text, others are legal or refused with the reason."""

from __future__ import annotations

import pytest

import tensor_graphs as tg
from tensor_graphs.codegen import schedule_actions, tile_schedule, tuned_kernel
from tensor_graphs.codegen.print import cuda_tiles
from tensor_graphs.codegen.schedule_actions import IllegalAction
from tensor_graphs.codegen.tile_schedule import SHAPED, TileSize, TileTask
from tensor_graphs.kernels.kernel import NotLowered, Spec
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language.anonymous_composite import part_between
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.node import Node, apply


def product(rows: int = 512, dtype: DType = tg.bf16, gate: bool = False) -> Signature:
    x, w, b, v = (tg.input(name, shape, dtype) for name, shape in (
        ("x", (rows, 2048)), ("w", (3072, 2048)), ("b", (3072,)), ("v", (3072, 2048))))
    y: Node = tg.silu(tg.linear(x, w)) * tg.linear(x, v) if gate else tg.gelu(tg.linear(x, w) + b)
    inputs = [x, w, v] if gate else [x, w, b]
    return signature_of(apply(part_between([y], inputs), inputs, {}))


def task(name: str, s: Signature) -> TileTask:
    return tile_schedule.task_of(SHAPED[name], s.spec)


@pytest.mark.parametrize(("name", "rows", "gate"), [("tiles", 512, False), ("tiles", 512, True), ("turned", 64, False),
                                                    ("turned", 64, True)])
def test_the_rules_shape_gives_the_rules_text_and_each_other_shape_another(name: str, rows: int, gate: bool) -> None:
    s = product(rows, gate=gate)
    of = task(name, s)
    seed = tile_schedule.seed(of)
    rules = cuda_tiles.build(SHAPED[name], s.spec)
    assert tile_schedule.program(of, seed) == rules == tile_schedule.program(of, ())
    sites = tile_schedule.choices(of, seed)
    schedules = [tile_schedule.changed(of, seed, a) for site in sites for a in site]
    assert len(sites) == 3 and len({tile_schedule.program(of, other).text for other in schedules}) == len(schedules)
    assert all(launch.shared <= 227 << 10 for other in schedules for launch in tile_schedule.program(of, other).launches)


def test_other_columns_have_as_many_stages_as_there_is_room_for() -> None:
    of = task("tiles", product())
    wide = tile_schedule.changed(of, tile_schedule.seed(of), TileSize(256, "columns"))
    assert TileSize(256, "columns") in wide and TileSize(4, "stages") in wide


@pytest.mark.parametrize(("action", "why"), [
    (TileSize(512, "columns"), "at most 256 columns"), (TileSize(9, "stages"), "stages are at least two"),
    (TileSize(3, "splits"), "a cluster has no such number"), (TileSize(4, "rows"), "a shape has")])
def test_what_is_illegal_is_refused_with_the_reason(action: TileSize, why: str) -> None:
    of = task("tiles", product())
    with pytest.raises(IllegalAction, match=why):
        tile_schedule.program(of, (action,))


def test_products_whose_weights_are_prepared_are_not_searched() -> None:
    with pytest.raises(NotLowered, match="parts of its weights are prepared"):
        task("tiles", product(dtype=tg.f32))
    with pytest.raises(NotLowered, match="a single op"):
        tile_schedule.task_of(SHAPED["tiles"], Spec.of(tg.tanh(tg.input("x", (8, 8)))))


def test_a_kernel_of_another_shape_is_made_anew_of_its_text() -> None:
    s = product()
    of = task("tiles", s)
    schedule = tile_schedule.changed(of, tile_schedule.seed(of), TileSize(2, "splits"))
    kernel = tuned_kernel.tuned(s, schedule, "gencuda.tiles")
    again = tuned_kernel.kernel_from(kernel.source)
    assert again.identity == kernel.identity and again.accepts(s.spec) is None and again.prepare is None
    assert again.build(s.spec) == tile_schedule.program(of, schedule)
    assert tuned_kernel.differs(again, s.spec) == "2 splits" and " * 2 splits" in tuned_kernel.text_of(again, s.spec)
    assert tuned_kernel.READ["gencuda.tiles"](schedule_actions.to_json(schedule)) == schedule
