"""Open streams of a model: a generator for each, which a step advances by one item."""

from __future__ import annotations

import inspect
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from horologe_common.status import Lost, ModelFailed, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from numpy.typing import NDArray

    from horologe_gpu_worker.core.stream_step import Step

    Begin = Callable[[Mapping[str, NDArray[Any]]], Any]


class OpenStreams:
    """Streams by owner and number. `begin` is the model's `predict_stream`.

    Invariant: a stream is removed when its generator ends, raises, or is closed.
    """

    def __init__(self, begin: Begin, limit: int) -> None:
        self._begin = begin
        self._limit = limit
        self._streams: dict[tuple[str, int], tuple[Generator[Any, Any, Any], int]] = {}
        """Generator of each stream, and the number of its last step."""

    def __len__(self) -> int:
        return len(self._streams)

    def step(self, step: Step, inputs: Mapping[str, NDArray[Any]]) -> tuple[Any, bool]:
        """Return the next item and whether more may follow. The item is None if the generator has returned nothing.

        Raises `Refused` if too many streams are open, `Lost` for a step whose stream is not open here or which has
        run already, and what the generator raises.
        """
        key = step.owner, step.stream
        if step.number == 1:
            self._open(key, inputs)
        items, number = self._streams.get(key, (None, 0))
        if items is None or number != step.number - 1:
            raise Lost(f"the state of the stream before its item {step.number} is not here any more")
        self._streams[key] = items, step.number
        try:
            return next(items), True
        except StopIteration as end:
            del self._streams[key]
            return end.value, False
        except BaseException:
            del self._streams[key]
            raise

    def _open(self, key: tuple[str, int], inputs: Mapping[str, NDArray[Any]]) -> None:
        """Open a stream. One with the same key has delivered nothing: its first step is run again."""
        self.end(key[0], key[1:])
        if len(self._streams) >= self._limit:
            raise Refused(f"as many streams are open as `stream.max_open` in model.toml permits: {self._limit}")
        items = self._begin(inputs)
        if not inspect.isgenerator(items):
            raise ModelFailed(f"predict_stream: got {type(items).__name__}, wanted a generator (`yield`)")
        self._streams[key] = items, 0

    def end(self, owner: str, streams: tuple[int, ...] = ()) -> None:
        """Close these streams of an owner, or all of them. Unknown ones are ignored. An empty owner: all streams.

        Raises what a generator raises when it is closed, after all are closed.
        """
        keys = [(owner, stream) for stream in streams] or [key for key in self._streams if owner in ("", key[0])]
        with ExitStack() as closing:  # an exception of one stream leaves none of the others open
            for key in keys:
                if (stream := self._streams.pop(key, None)) is not None:
                    closing.callback(stream[0].close)
