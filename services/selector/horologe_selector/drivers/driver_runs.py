"""The driver function of a pipeline, `async def run(call, inputs)` in `pipelines/<name>.py`, and its runs.

Messages of the selector resume coroutines, whose calls are messages to the selector.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Mapping
from contextvars import copy_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from horologe_common.core.protocol import UNLIMITED
from horologe_common.service.user_files import SourceLoader
from horologe_common.status import STATUS_NAMES, HorologeError, InvalidInput, Status, describe_exception
from horologe_common.string_tensors import as_array
from horologe_common.wire import (
    STREAM_WINDOW,
    CallDone,
    CallTaken,
    EndRun,
    ItemsTaken,
    ModelCall,
    Ping,
    Pong,
    RunDone,
    RunItem,
    StartRun,
)
from horologe_common.wire.frames import decode_array, encode_array
from horologe_selector.drivers.call_stream import CallStream
from horologe_selector.drivers.driver_loop import PREDECESSORS, RUN, DriverLoop, Predecessors

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from numpy.typing import NDArray

    from horologe_common.core.protocol import Buffer
    from horologe_common.wire import AnyMessage, Tensor

    DriverFunction = Callable[["Caller", dict[str, NDArray[Any]]], Awaitable[Any] | AsyncIterator[Any]]

FUNCTION = "run"
REASON_LIMIT = 2000


def load_driver(path: Path) -> DriverFunction:
    """Import the file and return its function `run`. Raises `InvalidInput` with file, line and error."""
    sys.dont_write_bytecode = True  # the folder may be read-only
    name = f"horologe_pipeline_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path, loader=SourceLoader(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        file = Path(error.filename or path).name
        raise InvalidInput(f"{file}: line {error.lineno}: {error.msg}") from error
    except BaseException as error:  # SystemExit too: the reason must reach the operator
        if isinstance(error, KeyboardInterrupt):
            raise
        file, line = _find_place(error, path.parent)
        raise InvalidInput(f"{file}: line {line}: {describe_exception(error)}") from error
    function: Any = getattr(module, FUNCTION, None)
    is_driver = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    if not is_driver or len(inspect.signature(function).parameters) != 2:
        raise InvalidInput(f"{path.name}: got no `async def {FUNCTION}(call, inputs)`, wanted one")
    return cast("DriverFunction", function)


class CallFailed(Exception):
    """A call got no outputs. `status` is a name such as REFUSED, LATE, LOST, TOO_LARGE or FAILED."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status_code = status
        self.status = STATUS_NAMES[status]
        self.reason = reason


class StepTooLong(BaseException):
    """A run used the processor for too long between two calls, or blocked. No `except Exception` catches it."""


class Caller:
    """The parameter `call` of a driver function: `await call(model, tensors)` returns the outputs by name.

    `call.Failed` is the exception of a call without outputs. `call.remaining()` returns the seconds until the deadline.
    """

    Failed = CallFailed

    def __init__(self, runs: DriverRuns, run: DriverRun) -> None:
        self._runs = runs
        self._run = run

    def __call__(self, model: str, tensors: Mapping[str, Any]) -> asyncio.Future[dict[str, NDArray[Any]]]:
        """Send a call. Raises `CallFailed` for too many calls, and for invalid or too large tensors."""
        return self._runs.start_call(self._run, model, tensors, sys._getframe(1).f_lineno)

    def stream(self, model: str, tensors: Mapping[str, Any]) -> CallStream:
        """Read the stream of a model: `async for outputs in call.stream(model, tensors)`. Raises as a call does."""
        return self._runs.start_stream(self._run, model, tensors, sys._getframe(1).f_lineno)

    def remaining(self) -> float:
        """Return the seconds until the deadline of the query; negative after it."""
        return (self._run.deadline_ns - self._runs.clock()) / 1e9


class DriverRun:
    """One execution of the driver function."""

    def __init__(self, number: int, deadline_ns: int) -> None:
        self.id = number
        self.deadline_ns = deadline_ns
        self.calls = 0
        self.open: dict[int, tuple[asyncio.Future[dict[str, NDArray[Any]]], tuple[int, ...], Predecessors]] = {}
        """Future, parents, and the predecessors of the calling task, by call."""
        self.streams: dict[int, CallStream] = {}
        """Open calls that are streams."""
        self.ended = False
        self.items = 0
        """Items that it has yielded."""
        self.taken = 0
        """Items that the receiver has taken."""
        self.room: asyncio.Future[None] | None = None
        """Set while it waits until the receiver takes items."""


class DriverRuns:
    """All runs of one driver. `out` holds messages and their buffers for the selector.

    Call `step` after `handle`, and again at `wakeup_ns`. Invariant: each run that is not ended by EndRun sends exactly
    one RunDone.
    """

    def __init__(
        self,
        function: DriverFunction,
        calls_limit: int,
        clock: Callable[[], int],
        on_step: Callable[[int], None] | None = None,
        max_frame_bytes: int = UNLIMITED,
    ) -> None:
        self.out: list[tuple[AnyMessage, Sequence[Buffer]]] = []
        self.clock = clock
        self.loop = DriverLoop(clock, on_step)  # type: ignore[abstract]  # what it lacks raises NotImplementedError
        self._function = function
        self._calls_limit = calls_limit
        self._max_frame_bytes = max_frame_bytes
        self._runs: dict[int, DriverRun] = {}
        self._starting: list[tuple[DriverRun, dict[str, NDArray[Any]]]] = []
        self.out_of_memory = False
        """A run got a MemoryError: a leak would continue, so the process must end."""

    def __len__(self) -> int:
        return len(self._runs)

    def handle(self, message: AnyMessage, buffers: Sequence[Buffer]) -> None:
        match message:
            case StartRun():
                self._start_run(message, buffers)
            case CallDone():
                self._resume_run(message, buffers)
            case EndRun():
                if run := self._runs.get(message.run):
                    self._end_run(run)
            case ItemsTaken():
                if run := self._runs.get(message.id):
                    self._take_items(run, message.items)
            case Ping():
                self.out.append((Pong(message.sent_ns, self.clock()), ()))

    def step(self) -> None:
        """Execute the runs until all of them wait."""
        starting, self._starting = self._starting, []
        for run, inputs in starting:
            if not run.ended:
                context = copy_context()
                context.run(RUN.set, run.id)
                context.run(PREDECESSORS.set, Predecessors())
                self.loop.create_task(self._execute(run, inputs), context=context)
        self.loop.run_ready()
        for number, message in self.loop.errors:
            sys.stderr.write(f"run {number}: {message}\n")
        self.loop.errors.clear()

    def wakeup_ns(self) -> int | None:
        """Return when to call `step` if no message arrives before."""
        return self.loop.wakeup_ns()

    def start_call(
        self, run: DriverRun, model: str, tensors: Mapping[str, Any], place: int
    ) -> asyncio.Future[dict[str, NDArray[Any]]]:
        """Send a call. Raises `CallFailed` for too many calls, and for invalid or too large tensors."""
        return self._send_call(run, model, tensors, place, is_stream=False)[1]

    def start_stream(self, run: DriverRun, model: str, tensors: Mapping[str, Any], place: int) -> CallStream:
        """Send a call that is a stream. Raises as `start_call` does."""
        call, future = self._send_call(run, model, tensors, place, is_stream=True)
        stream = run.streams[call] = CallStream(self, run, call)
        stream.begin(future)
        return stream

    def end_stream(self, run: DriverRun, call: int) -> None:
        """Cancel a call that is a stream, unless it has ended."""
        if run.streams.pop(call, None) is not None and (entry := run.open.pop(call, None)) is not None:
            entry[0].cancel()
            self.out.append((CallTaken(run.id, call, -1), ()))

    def _send_call(
        self, run: DriverRun, model: str, tensors: Mapping[str, Any], place: int, *, is_stream: bool
    ) -> tuple[int, asyncio.Future[dict[str, NDArray[Any]]]]:
        if run.ended:
            raise asyncio.CancelledError
        if run.calls >= self._calls_limit:
            reason = f"calls: got more than {self._calls_limit} in one query"
            raise CallFailed(int(Status.FAILED), reason)
        inputs, buffers = self._encode("inputs of a call", tensors, "input")
        run.calls += 1
        call, predecessors, future = run.calls, PREDECESSORS.get(), self.loop.create_future()
        parents = tuple(predecessors.calls)
        run.open[call] = future, parents, predecessors
        self.out.append((ModelCall(run.id, call, str(model), place, parents, inputs, is_stream), buffers))
        return call, future

    def _start_run(self, message: StartRun, buffers: Sequence[Buffer]) -> None:
        run = self._runs[message.run] = DriverRun(message.run, self.clock() + message.budget_ns)
        self._starting.append((run, _decode(message.inputs, buffers)))

    async def _execute(self, run: DriverRun, inputs: dict[str, NDArray[Any]]) -> None:
        """Run the driver function and send its result. Tasks that it has left behind are cancelled."""
        outputs: tuple[Tensor, ...] = ()
        buffers: list[Buffer] = []
        status, reason = int(Status.OK), ""
        try:
            result = self._function(Caller(self, run), inputs)
            if inspect.isasyncgen(result):
                await self._send_items(run, result)
            else:
                outputs, buffers = self._encode("result", await cast("Awaitable[Any]", result), "output")
        except asyncio.CancelledError:
            if run.ended:
                return
            status, reason = int(Status.FAILED), "the driver cancelled itself"
        except GeneratorExit:  # the process or the simulated process ends
            raise
        except BaseException as error:
            self.loop.running = 0  # the code from here on is not the driver's: the guard must not interrupt it
            self.out_of_memory |= isinstance(error, MemoryError)
            status, reason = _describe(error, _folder_of(self._function))
        if not run.ended:
            self.out.append((RunDone(run.id, status, reason[:REASON_LIMIT], outputs), buffers))
            self._end_run(run)

    async def _send_items(self, run: DriverRun, items: AsyncIterator[Any]) -> None:
        """Send what the driver yields, while the receiver has room for it."""
        async for item in items:
            outputs, buffers = self._encode("item", item, "output")
            if run.ended:
                return
            run.items += 1
            self.out.append((RunItem(run.id, outputs), buffers))
            if run.items - run.taken >= STREAM_WINDOW:
                run.room = self.loop.create_future()
                await run.room

    def _take_items(self, run: DriverRun, items: int) -> None:
        run.taken = max(run.taken, min(items, run.items))
        room = run.room
        if room is not None and not room.done() and run.items - run.taken < STREAM_WINDOW:
            room.set_result(None)

    def _resume_run(self, message: CallDone, buffers: Sequence[Buffer]) -> None:
        run = self._runs.get(message.run)
        if run is None:
            return
        if message.more:
            if (stream := run.streams.get(message.call)) is not None:
                stream.add_item(_decode(message.outputs, buffers))
            return
        run.streams.pop(message.call, None)
        if (entry := run.open.pop(message.call, None)) is None:
            return
        future, parents, predecessors = entry
        predecessors.add(message.call, parents)
        if future.done():  # the driver has cancelled the call
            return
        if message.status == Status.OK:
            future.set_result(_decode(message.outputs, buffers))
        else:
            future.set_exception(CallFailed(message.status, message.reason))
            future.exception()  # a driver need not await it

    def _encode(self, what: str, tensors: Any, side: str) -> tuple[tuple[Tensor, ...], list[Buffer]]:
        """Return headers and bytes of arrays by name. Raises `CallFailed` for anything else, and for too many bytes."""
        if not isinstance(tensors, Mapping) or not tensors:
            got = type(tensors).__name__
            raise CallFailed(int(Status.FAILED), f"{what}: got {got}, wanted a dict of name to array")
        try:
            packed = [encode_array(str(name), as_array(value), side) for name, value in tensors.items()]
        except (HorologeError, ValueError) as error:
            raise CallFailed(int(Status.FAILED), f"{what}: {error}") from error
        size, limit = sum(len(buffer) for _, buffer in packed), self._max_frame_bytes
        if size > limit:
            reason = f"{what}: got {size} bytes, wanted at most {limit} (links.max_frame_bytes)"
            raise CallFailed(int(Status.TOO_LARGE), reason)
        return tuple(header for header, _ in packed), [buffer for _, buffer in packed]

    def _end_run(self, run: DriverRun) -> None:
        run.ended = True
        del self._runs[run.id]
        for future, _, _ in run.open.values():
            future.cancel()
        run.open.clear()
        run.streams.clear()
        self.loop.cancel_run(run.id)


def _decode(headers: Sequence[Tensor], buffers: Sequence[Buffer]) -> dict[str, NDArray[Any]]:
    """Return arrays by name. They are read-only: several calls of a driver may send the same array."""
    arrays = {tensor.name: decode_array(tensor, buffer) for tensor, buffer in zip(headers, buffers, strict=True)}
    for array in arrays.values():
        array.flags.writeable = False
    return arrays


def _describe(error: BaseException, folder: Path) -> tuple[int, str]:
    """Return status and reason of a run that has raised. The error of a call keeps its status."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, CallFailed):
        return error.status_code, error.reason
    with contextlib.suppress(Exception):  # the driver may have closed or replaced its standard error
        traceback.print_exception(error)
    name, line = _find_place(error, folder)
    return int(Status.FAILED), f"{describe_exception(error)} ({name}, line {line})"


def _folder_of(function: DriverFunction) -> Path:
    """Return the folder of the driver's file. A `functools.partial` has none: the result is in no frame's name."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return Path(code.co_filename if code else "").parent


def _find_place(error: BaseException, folder: Path) -> tuple[str, int | None]:
    """Return file and line of the last frame in the driver's folder, because only these files are the user's.

    Return the last frame of all if none of them is in the folder.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).parent == folder]
    place = (own or frames)[-1]
    return Path(place.filename).name, place.lineno
