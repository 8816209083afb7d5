"""Staged tensors: held within the bound, shipped unopened, missing ones named."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from horologe_common.core.staging import EARLY_DISPATCHES, StagedInputs
from horologe_common.wire import Dispatch, Ship, Shipped, Tensor

X = (Tensor("x", "UINT8", (4,), 4),)


def test_what_is_held_is_shipped_to_the_worker_that_the_dispatch_names() -> None:
    staging = StagedInputs("frontend/0#a", 100)
    staging.add_worker("worker/0#b")
    assert staging.hold(1, X, [b"aaaa"])
    assert staging.hold(2, X, [b"bbbb"])
    (out,) = staging.answer_dispatch(Dispatch(9, "worker/0#b", (2, 1)))
    assert out.to == "worker/0#b"
    assert out.message == Ship(9, "frontend/0#a", (Shipped(2, X), Shipped(1, X)))
    assert list(out.buffers) == [b"bbbb", b"aaaa"]
    assert len(staging) == 2, "kept: the request may have to be planned again"


def test_what_is_no_longer_held_is_named_missing() -> None:
    staging = StagedInputs("frontend/0#a", 100)
    staging.hold(1, X, [b"aaaa"])
    staging.release(1)
    staging.release(1)
    staging.add_worker("w")
    (out,) = staging.answer_dispatch(Dispatch(9, "w", (1, 5)))
    assert out.message == Ship(9, "frontend/0#a", (), (1, 5))
    assert 1 not in staging


def test_inputs_for_a_worker_that_is_not_connected_yet_are_shipped_when_it_connects() -> None:
    staging = StagedInputs("frontend/0#a", 100)
    staging.hold(1, X, [b"aaaa"])
    staging.hold(2, X, [b"bbbb"])
    assert not staging.answer_dispatch(Dispatch(9, "worker/new#1", (1, 2)))
    assert not staging.answer_dispatch(Dispatch(10, "worker/gone#1", (1,)))
    staging.release(2)
    assert not staging.add_worker("old")
    (out,) = staging.add_worker("worker/new#1")
    assert (out.to, out.message) == ("worker/new#1", Ship(9, "frontend/0#a", (Shipped(1, X),), (2,)))
    assert list(out.buffers) == [b"aaaa"]
    staging.remove_worker("worker/new#1")
    assert not staging.add_worker("worker/new#1"), "shipped once"


def test_a_selector_gets_the_inputs_of_a_pipeline_at_once() -> None:
    staging = StagedInputs("frontend/0#a", 100)
    staging.hold(1, (), ())
    (out,) = staging.answer_dispatch(Dispatch(3, "selector/0#1", (1,)))
    assert (out.to, out.message) == ("selector/0#1", Ship(3, "frontend/0#a", (Shipped(1, ()),)))


def test_the_dispatches_that_wait_for_workers_are_bounded() -> None:
    staging = StagedInputs("frontend/0#a", 100)
    for number in range(2 * EARLY_DISPATCHES):
        staging.answer_dispatch(Dispatch(number, "worker/new#1", ()))
    assert [out.message.action_id for out in staging.add_worker("worker/new#1")] == list(
        range(EARLY_DISPATCHES, 2 * EARLY_DISPATCHES)
    )


def test_beyond_the_bound_nothing_is_held() -> None:
    staging = StagedInputs("frontend/0#a", 10)
    assert staging.hold(1, X, [b"x" * 6])
    assert not staging.hold(2, X, [b"x" * 5])
    assert 2 not in staging
    staging.release(1)
    assert staging.hold(2, X, [b"x" * 5])


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 4), st.integers(0, 9)), max_size=40))
def test_the_bytes_held_are_those_of_what_is_held(steps: list[tuple[bool, int, int]]) -> None:
    staging = StagedInputs("frontend/0#a", 20)
    for hold, input_id, size in steps:
        if hold:
            staging.hold(input_id, X, [b"x" * size, b""])
        else:
            staging.release(input_id)
        staging.check()
    for input_id in range(5):
        staging.release(input_id)
    assert (staging.held_bytes, len(staging)) == (0, 0)
