"""Runs of a driver function: its calls, its result, its failures, and the order of its calls."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from horologe_common.clock import ms
from horologe_common.status import Status
from horologe_common.wire import CallDone, EndRun, ModelCall, Ping, Pong, RunDone, StartRun
from horologe_common.wire.frames import decode_array, encode_array
from horologe_selector.drivers.driver_runs import DriverRuns, load_driver

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class DriverDesk:
    """A driver with a clock, and the messages that it has sent."""

    def __init__(self, function: Any) -> None:
        self.now_ns = ms(1000)
        self.runs = DriverRuns(function, 100, lambda: self.now_ns)
        self.calls: dict[tuple[int, int], tuple[ModelCall, dict[str, Any]]] = {}
        self.done: dict[int, tuple[RunDone, dict[str, Any]]] = {}
        self.others: list[Any] = []

    def start(self, run: int, budget_ns: int = ms(100), **tensors: Any) -> None:
        headers, buffers = _encoded(tensors or {"x": np.ones((1, 2), "f4")})
        self.handle(StartRun(run, budget_ns, headers), buffers)

    def answer(self, run: int, call: int, **tensors: Any) -> None:
        headers, buffers = _encoded(tensors or {"y": np.full((1, 2), call, "f4")})
        self.handle(CallDone(run, call, 0, "", headers), buffers)

    def fail(self, run: int, call: int, status: Status, reason: str = "why") -> None:
        self.handle(CallDone(run, call, int(status), reason), [])

    def handle(self, message: Any, buffers: Any = ()) -> None:
        self.runs.handle(message, buffers)
        self.step()

    def step(self) -> None:
        self.runs.step()
        out, self.runs.out = self.runs.out, []
        for message, buffers in out:
            match message:
                case ModelCall():
                    self.calls[message.run, message.call] = message, _decoded(message.inputs, buffers)
                case RunDone():
                    assert message.run not in self.done
                    self.done[message.run] = message, _decoded(message.outputs, buffers)
                case _:
                    self.others.append(message)

    def parents(self, run: int = 1) -> dict[int, tuple[int, ...]]:
        return {call: message.parents for (owner, call), (message, _) in self.calls.items() if owner == run}


def _encoded(tensors: dict[str, Any]) -> tuple[Any, Any]:
    packed = [encode_array(name, array) for name, array in tensors.items()]
    return tuple(header for header, _ in packed), [buffer for _, buffer in packed]


def _decoded(headers: Any, buffers: Any) -> dict[str, Any]:
    return {tensor.name: decode_array(tensor, buffer) for tensor, buffer in zip(headers, buffers, strict=True)}


async def chain(call: Any, inputs: Any) -> Any:
    first = await call("a", {"x": inputs["x"]})
    second = await call("b", {"x": first["y"] + 1})
    return {"y": second["y"]}


def test_a_run_calls_models_and_returns() -> None:
    desk = DriverDesk(chain)
    desk.start(7)
    assert list(desk.calls) == [(7, 1)]
    desk.answer(7, 1)
    assert desk.calls[7, 2][0].model == "b"
    assert desk.calls[7, 2][1]["x"].tolist() == [[2, 2]]
    desk.answer(7, 2)
    message, outputs = desk.done[7]
    assert (message.status, outputs["y"].tolist()) == (0, [[2, 2]])
    assert len(desk.runs) == 0


def test_runs_do_not_mix() -> None:
    desk = DriverDesk(chain)
    for run in (1, 2, 3):
        desk.start(run)
    for run, value in ((2, 20), (3, 30), (1, 10)):
        desk.answer(run, 1, y=np.full((1, 2), value, "f4"))
    assert {run: inputs["x"][0, 0] for (run, call), (_, inputs) in desk.calls.items() if call == 2} == {
        1: 11, 2: 21, 3: 31,
    }  # fmt: skip


async def diamond(call: Any, inputs: Any) -> Any:
    first = await call("a", inputs)
    await asyncio.gather(call("b", first), call("c", first))
    return await call("d", first)


async def branches(call: Any, inputs: Any) -> Any:
    async def branch(one: str, two: str) -> Any:
        return await call(two, await call(one, inputs))

    await asyncio.gather(branch("a", "b"), branch("c", "d"))
    return await call("e", inputs)


async def groups(call: Any, inputs: Any) -> Any:
    async with asyncio.TaskGroup() as group:
        group.create_task(diamond(call, inputs))
    return await call("e", inputs)


@pytest.mark.parametrize(
    ("function", "answers", "parents"),
    [
        (diamond, [1, 3, 2], {1: (), 2: (1,), 3: (1,), 4: (2, 3)}),
        (diamond, [1, 2, 3], {1: (), 2: (1,), 3: (1,), 4: (2, 3)}),
        (branches, [1, 3, 2, 4], {1: (), 2: (), 3: (1,), 4: (2,), 5: (3, 4)}),
        (branches, [2, 3, 1, 4], {1: (), 2: (), 3: (2,), 4: (1,), 5: (3, 4)}),
        (groups, [1, 2, 3, 4], {1: (), 2: (1,), 3: (1,), 4: (2, 3), 5: (4,)}),
    ],
)
def test_parents_are_the_calls_whose_results_a_call_may_use(
    function: Any, answers: list[int], parents: dict[int, tuple[int, ...]]
) -> None:
    desk = DriverDesk(function)
    desk.start(1)
    for call in answers:
        desk.answer(1, call)
    assert {call: tuple(sorted(of)) for call, of in desk.parents().items()} == parents


async def catches(call: Any, inputs: Any) -> Any:
    try:
        return await call("a", inputs)
    except call.Failed as error:
        return {"y": np.array([[len(error.status)]])}


def test_a_driver_can_catch_a_failed_call() -> None:
    desk = DriverDesk(catches)
    desk.start(1)
    desk.fail(1, 1, Status.REFUSED)
    assert desk.done[1][1]["y"].tolist() == [[len("REFUSED")]]


@pytest.mark.parametrize("function", [chain, branches, groups])
def test_a_failed_call_that_is_not_caught_ends_the_run_with_its_status(function: Any) -> None:
    desk = DriverDesk(function)
    desk.start(1)
    desk.fail(1, 1, Status.REFUSED, "stage a: too late")
    message, _ = desk.done[1]
    assert (message.status, message.reason) == (int(Status.REFUSED), "stage a: too late")
    assert len(desk.runs) == 0


async def raises(call: Any, inputs: Any) -> Any:
    raise ValueError("broken")


async def exits(call: Any, inputs: Any) -> Any:
    raise SystemExit(3)


async def returns_list(call: Any, inputs: Any) -> Any:
    return [1]


async def sends_object(call: Any, inputs: Any) -> Any:
    await call("a", {"x": np.ones(2, "c16")})


async def many_calls(call: Any, inputs: Any) -> Any:
    await asyncio.gather(*(call("a", inputs) for _ in range(10_000)))


class NoText(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


async def raises_no_text(call: Any, inputs: Any) -> Any:
    raise NoText


async def raises_surrogates(call: Any, inputs: Any) -> Any:
    raise FileNotFoundError("no file \udcff")


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (raises, "ValueError: broken (test_driver_runs.py, line "),
        (raises_no_text, "NoText: its text raises ZeroDivisionError (test_driver_runs.py, line "),
        (raises_surrogates, "FileNotFoundError: no file ? (test_driver_runs.py, line "),
        (exits, "SystemExit: 3"),
        (returns_list, "result: got list, wanted a dict of name to array"),
        (sends_object, "inputs of a call: input 'x': dtype: got complex128, wanted one of "),
        (many_calls, "calls: got more than 100 in one query"),
    ],
)
def test_a_faulty_driver_fails_with_a_reason(
    function: Callable[..., Any], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    desk = DriverDesk(function)
    desk.start(1)
    message, _ = desk.done[1]
    assert message.status == Status.FAILED
    assert reason in message.reason
    assert len(desk.calls) <= 100
    desk.start(2)  # the driver still works
    assert 2 in desk.done


@pytest.mark.parametrize("line", ["json.loads('no')", "asyncio.get_running_loop().run_in_executor(None, len)"])
def test_an_error_names_the_line_of_the_driver_and_not_of_a_library(tmp_path: Path, line: str) -> None:
    (tmp_path / "err.py").write_text(f"import asyncio, json\nasync def run(call, inputs):\n    {line}\n")
    desk = DriverDesk(load_driver(tmp_path / "err.py"))
    desk.start(1)
    assert desk.done[1][0].reason.endswith("(err.py, line 3)")


def test_an_error_of_a_driver_that_is_a_partial_has_a_reason() -> None:
    desk = DriverDesk(functools.partial(raises))
    desk.start(1)
    assert desk.done[1][0].reason.startswith("ValueError: broken (test_driver_runs.py, line ")


@pytest.mark.parametrize("kind", ["inputs", "outputs", "items"])
def test_arrays_that_a_driver_gets_are_read_only(kind: str) -> None:
    async def run(call: Any, inputs: Any) -> Any:
        if kind == "inputs":
            inputs["x"][0, 0] = 3
        elif kind == "outputs":
            (await call("a", inputs))["y"][0, 0] = 3
        else:
            async for item in call.stream("a", inputs):
                item["y"][0, 0] = 3

    desk = DriverDesk(run)
    desk.start(1)
    if kind != "inputs":
        desk.answer(1, 1)
    assert "read-only" in desk.done[1][0].reason


def test_an_ended_run_sends_nothing() -> None:
    desk = DriverDesk(branches)
    desk.start(1)
    desk.handle(EndRun(1))
    desk.answer(1, 1)
    assert (len(desk.calls), desk.done, len(desk.runs)) == (2, {}, 0)


async def leaves_task(call: Any, inputs: Any) -> Any:
    async def forever() -> None:
        while True:  # noqa: ASYNC110 - the task must not end
            await asyncio.sleep(0.01)

    asyncio.get_running_loop().create_task(forever())
    return inputs


def test_tasks_that_a_run_leaves_behind_are_cancelled() -> None:
    desk = DriverDesk(leaves_task)
    desk.start(1)
    assert 1 in desk.done
    assert desk.runs.wakeup_ns() is None


async def hedges(call: Any, inputs: Any) -> Any:
    try:
        return await asyncio.wait_for(call("a", inputs), 0.05)
    except asyncio.TimeoutError:  # noqa: UP041 - the documentation of asyncio calls it so
        assert 0.04 < call.remaining() < 0.06
        return await call("b", inputs)


def test_timers_work() -> None:
    desk = DriverDesk(hedges)
    desk.start(1)
    wakeup_ns = desk.runs.wakeup_ns()
    assert wakeup_ns == desk.now_ns + ms(50)
    desk.now_ns = wakeup_ns
    desk.step()
    assert desk.calls[1, 2][0].model == "b"
    desk.answer(1, 1)
    desk.answer(1, 2)
    assert desk.done[1][0].status == 0


def test_pings_are_answered() -> None:
    desk = DriverDesk(chain)
    desk.handle(Ping(5))
    assert desk.others == [Pong(5, desk.now_ns)]


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 5)), max_size=40))
def test_each_run_ends_once_whatever_is_answered_in_whatever_order(events: list[tuple[int, int]]) -> None:
    desk = DriverDesk(diamond)
    for run in range(1, 5):
        desk.start(run)
    ended: set[int] = set()
    for run, call in events:
        if call == 5:
            desk.handle(EndRun(run))
            ended |= {run} - desk.done.keys()
        elif call == 0:
            desk.fail(run, 1, Status.LATE)
        else:
            desk.answer(run, call)
    assert len(desk.runs) == 4 - len(ended) - len(desk.done)
    assert not ended & desk.done.keys()
