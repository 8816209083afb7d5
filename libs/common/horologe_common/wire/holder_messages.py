"""Holder - worker - profiler: tensors. A holder keeps the inputs of a request: a frontend, or a profiler."""

from __future__ import annotations

from typing import TypeAlias

from horologe_common.status import Status
from horologe_common.wire.message import Message, Tensor


class Dispatch(Message, frozen=True, tag=40):
    """Ask a holder to send these inputs to the worker that runs `action_id`. From the controller."""

    action_id: int
    worker: str
    input_ids: tuple[int, ...]


class Shipped(Message, frozen=True):
    """The inputs of one request, in a Ship."""

    input_id: int
    inputs: tuple[Tensor, ...]


class Ship(Message, frozen=True, tag=41):
    """Inputs of rows of an action, from a holder to the worker. `missing`: ids that the holder does not have."""

    action_id: int
    holder: str
    items: tuple[Shipped, ...]
    missing: tuple[int, ...] = ()


class RowStatus(Message, frozen=True):
    """Status of a submit in an action. If it is OK, the next `rows` rows of the outputs belong to the submit `id`."""

    id: int
    rows: int
    status: int = Status.OK
    reason: str = ""
    more: bool = False
    """True for an item of a stream that may have more."""


class Outputs(Message, frozen=True, tag=42):
    """Outputs of an action, from the worker to one submitter: its rows, concatenated along dimension 0."""

    action_id: int
    items: tuple[RowStatus, ...]
    outputs: tuple[Tensor, ...]
    model: str = ""
    batch_size: int = 0
    begin_ns: int = 0
    end_ns: int = 0
    content_hash: str = ""
    """Content of the model that ran. Empty: not known."""
    slowness: float = 1.0
    """That of the INFER (`Infer.slowness`)."""
    share: int = 0
    """Share of the worker that ran the action."""


class EndStreams(Message, frozen=True, tag=43):
    """Drop the state of these streams of `model` on a share. From their submitter to the worker that keeps it."""

    share: int
    model: str
    streams: tuple[int, ...]


class Sample(Message, frozen=True, tag=60):
    """Inputs of a finished request, from a holder to a profiler, which may run them again to measure their time.

    `model` is a key `name/version`. There is no answer.
    """

    model: str
    inputs: tuple[Tensor, ...]
    rows: int = 1
    length: int = 0
    application: str = ""


class DurationHistogram(Message, frozen=True):
    """Execution times of single rows: `counts[i]` were at least `edges_ns[i]` and less than `edges_ns[i + 1]`."""

    application: str
    length: int
    """Longest length in this histogram; the shortest is above that of the histogram before. 0: any length."""
    edges_ns: tuple[int, ...]
    counts: tuple[int, ...]


class Distributions(Message, frozen=True, tag=61):
    """Execution times of a model, from a profiler to the controller. They replace all earlier ones.

    A batch of k rows takes `base_ns` + scale * (t - `base_ns`), where its longest row takes t alone. `batch_scales` has
    the scale of each measured k. If it is empty, the scale is k (ORLOJ, eq. 3). A row of length l takes about `base_ns`
    + `row_ns_per_length` * l alone; 0: length does not matter.
    """

    model: str
    base_ns: int
    row_ns_per_length: float = 0.0
    histograms: tuple[DurationHistogram, ...] = ()
    dynamic: bool = False
    """True if the execution time depends on the input. Otherwise the histograms show the noise of the machine."""
    batch_scales: tuple[tuple[int, float], ...] = ()
    """(batch size, scale), ascending. The smallest size has 1."""
    content_hash: str = ""
    """Content of the model that was measured. Empty: not known."""


HolderMessage: TypeAlias = Dispatch | Ship | Outputs | EndStreams | Sample | Distributions
