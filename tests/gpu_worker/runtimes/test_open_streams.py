"""Open streams of a model: one step at a time, each once, and nothing is left of those that have ended."""

from __future__ import annotations

from typing import Any

import pytest

from horologe_common.status import Lost, ModelFailed, Refused
from horologe_gpu_worker.core.stream_step import Step
from horologe_gpu_worker.runtimes.open_streams import OpenStreams

closed: list[int] = []


def count(inputs: Any) -> Any:
    try:
        yield from range(inputs["n"])
    finally:
        closed.append(inputs["n"])
    return "last" if inputs["n"] == 2 else None


@pytest.fixture
def streams() -> OpenStreams:
    closed.clear()
    return OpenStreams(count, 2)


def run(streams: OpenStreams, number: int, stream: int = 1, n: int = 3, owner: str = "selector/0#1") -> Any:
    inputs: Any = {"n": n}
    return streams.step(Step(owner, stream, number), inputs)


def test_a_stream_ends_by_itself_with_or_without_a_last_item(streams: OpenStreams) -> None:
    assert [run(streams, number) for number in (1, 2, 3, 4)] == [(0, True), (1, True), (2, True), (None, False)]
    assert [run(streams, number, n=2) for number in (1, 2, 3)] == [(0, True), (1, True), ("last", False)]
    assert len(streams) == 0


@pytest.mark.parametrize("number", [1, 3, 4])
def test_a_step_out_of_order_is_lost_and_the_first_begins_again(streams: OpenStreams, number: int) -> None:
    run(streams, 1)
    if number == 1:
        assert run(streams, 1) == (0, True)
        assert closed == [3]
    else:
        with pytest.raises(Lost, match=f"before its item {number}"):
            run(streams, number)
        assert run(streams, 2) == (1, True)


def test_streams_of_others_and_unknown_ones_are_apart(streams: OpenStreams) -> None:
    run(streams, 1, owner="a")
    run(streams, 1, owner="b")
    with pytest.raises(Refused, match="permits: 2"):
        run(streams, 1, owner="c")
    streams.end("a", (7,))
    assert len(streams) == 2
    streams.end("a")
    assert len(streams) == 1
    streams.end("")
    assert (len(streams), closed) == (0, [3, 3])


def test_an_exception_ends_the_stream() -> None:
    def broken(inputs: Any) -> Any:
        yield 1
        raise ValueError(inputs)

    streams = OpenStreams(broken, 1)
    run(streams, 1)
    with pytest.raises(ValueError, match="n"):
        run(streams, 2)
    assert len(streams) == 0


def test_a_function_that_does_not_yield() -> None:
    with pytest.raises(ModelFailed, match="wanted a generator"):
        run(OpenStreams(lambda inputs: {}, 1), 1)


def test_an_exception_at_the_end_of_a_stream_leaves_no_other_one_open() -> None:
    def broken(inputs: Any) -> Any:
        try:
            yield 1
        finally:
            closed.append(inputs["n"])
            raise ValueError(inputs)

    closed.clear()
    streams = OpenStreams(broken, 2)
    run(streams, 1, stream=1)
    run(streams, 1, stream=2)
    with pytest.raises(ValueError, match="n"):
        streams.end("")
    assert (len(streams), closed) == (0, [3, 3])
