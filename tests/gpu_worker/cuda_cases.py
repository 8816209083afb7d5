"""Cases for a model on a CUDA device. Unit tests run them on an emulated device, tests/gpu on a real one.

Imports nothing but PyTorch, numpy and the worker's device code.
"""

from __future__ import annotations

import gc
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from horologe_common.status import ModelFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench_gpu.rig import Rig

TOLERANCE: dict[str, Any] = {"rtol": 2e-2, "atol": 2e-3}
"""Convolutions on a device may compute in TF32, which keeps ten bits."""
NETS = ("resnet50", "transformer")


@pytest.fixture
def checked_rig(rig: Rig) -> Iterator[Rig]:
    """Return the rig. After the test, check that its pages and slots balance."""
    for name in rig.models:
        if not rig.models[name].loaded:
            rig.models[name].load()
    yield rig
    gc.collect()
    rig.engine.pool.check()
    rig.engine.arena.check()
    assert len(rig.engine.arena) == 0


def expected_scores(rig: Rig, name: str, inputs: dict[str, Any]) -> Any:
    """Return the scores of the module itself on the CPU, with the same seeded weights as the export."""
    torch.manual_seed(0)
    net = rig.nets[name].build().eval()
    [array] = inputs.values()
    return net(torch.from_numpy(array))["scores"].detach().numpy()


@pytest.mark.parametrize("name", NETS)
def test_answers_are_the_modules_at_every_batch_size(checked_rig: Rig, name: str) -> None:
    for rows in (16, 1, 4, 2, 8):
        inputs = checked_rig.inputs(name, rows, seed=rows)
        scores = checked_rig.model(name).run(rows, inputs)["scores"]
        np.testing.assert_allclose(scores, expected_scores(checked_rig, name, inputs), **TOLERANCE)


@pytest.mark.parametrize("name", NETS)
def test_graphs_stay_valid_when_weights_come_back_to_other_pages(checked_rig: Rig, name: str) -> None:
    model, inputs = checked_rig.model(name), checked_rig.inputs(name, 4)
    before = model.run(4, inputs)["scores"]
    where = model._range
    pages = where.mapped
    other = checked_rig.model(next(net for net in NETS if net != name))
    other.close()
    model.close()
    other.load()  # takes the pages that were just given back
    model.load()
    assert where.mapped != pages
    np.testing.assert_array_equal(model.run(4, inputs)["scores"], before)
    assert not model.weights_changed()
    assert other.run(1, checked_rig.inputs(other._spec.key, 1))["scores"].shape[0] == 1


def test_batches_of_two_models_in_turn_do_not_meet(checked_rig: Rig) -> None:
    """Run two models that share buffers and workspace in turn."""
    inputs = {name: checked_rig.inputs(name, 8) for name in NETS}
    first = {name: checked_rig.model(name).run(8, inputs[name])["scores"] for name in NETS}
    for _ in range(3):
        for name in NETS:
            np.testing.assert_array_equal(checked_rig.model(name).run(8, inputs[name])["scores"], first[name])


def test_the_next_input_may_be_staged_before_this_one_runs(checked_rig: Rig) -> None:
    model = checked_rig.model("resnet50")
    batches = [checked_rig.inputs("resnet50", 2, seed) for seed in range(3)]
    alone = [model.run(2, batch)["scores"] for batch in batches]
    slots = [model.slot(model.shapes_of(batch)) for batch in batches]
    for slot, batch in zip(slots, batches, strict=True):
        model.stage(slot, batch)
    for slot in slots:
        model.execute(2, slot)
        assert slot.device_ns > 0
    for slot, answer in zip(slots, alone, strict=True):
        np.testing.assert_array_equal(model.fetch(2, slot)["scores"], answer)


def test_loads_beside_exec_change_no_answer(checked_rig: Rig) -> None:
    model, other = checked_rig.model("transformer"), checked_rig.model("resnet50")
    inputs = checked_rig.inputs("transformer", 2)
    before = model.run(2, inputs)["scores"]
    stop, failures = Event(), []

    def loads() -> None:
        try:
            while not stop.is_set():
                other.close()
                other.load()
        except BaseException as error:
            failures.append(error)

    thread = Thread(target=loads)
    thread.start()
    try:
        for _ in range(50):
            np.testing.assert_array_equal(model.run(2, inputs)["scores"], before)
    finally:
        stop.set()
        thread.join()
    assert not failures
    answer = other.run(1, checked_rig.inputs("resnet50", 1))["scores"]
    assert np.isfinite(answer).all()


def test_a_model_captured_later_leaves_those_before_it_alone(checked_rig: Rig) -> None:
    inputs = checked_rig.inputs("resnet50", 4)
    before = checked_rig.model("resnet50").run(4, inputs)["scores"]
    late = checked_rig.new_model("resnet50", (2, 4))
    np.testing.assert_allclose(late.run(4, inputs)["scores"], before, **TOLERANCE)
    np.testing.assert_array_equal(checked_rig.model("resnet50").run(4, inputs)["scores"], before)
    late.close()
    late.retire()


def test_no_room_for_a_batch_is_a_clear_failure(checked_rig: Rig) -> None:
    model = checked_rig.model("resnet50")
    shapes = model.shapes_of(checked_rig.inputs("resnet50", 16))
    held = [model.slot(shapes)]
    fitting = checked_rig.engine.arena.size // model.layout_of(shapes).size
    with pytest.raises(ModelFailed, match=r"io: got a batch of \d+ bytes, wanted one that fits .*io_cache_bytes"):
        held.extend(model.slot(shapes) for _ in range(fitting))
    assert len(held) <= fitting


def test_an_output_of_another_shape_fails_the_capture(checked_rig: Rig) -> None:
    model, program = checked_rig.model("transformer"), checked_rig.program("transformer")
    layout = checked_rig.layout("transformer", 2)
    [output] = layout.outputs
    wrong = layout._replace(outputs=(output._replace(shape=(1, *output.shape[1:]), size=output.size // 2),))
    with pytest.raises(ValueError, match=r"output 'scores': got torch.float32 \[2, 2\], wanted torch.float32 \[1, 2\]"):
        checked_rig.engine.capturer.capture(program.forward, model.tensors, wrong)
