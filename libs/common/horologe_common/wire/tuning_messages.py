"""Selector - controller - tuner: arrivals and plans. Client - frontend - tuner: operators' calls."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from horologe_common.status import Status
from horologe_common.wire.message import Message


class ModelEvents(Message, frozen=True):
    """Events of a model (a key `name/version`) since the Events before."""

    model: str
    arrivals: tuple[tuple[int, int], ...]
    """(age of the bin, requests): a bin of age 0 ends with the message, one of age 1 a bin earlier. Ascending ages.
    Best-effort requests do not count."""
    in_time: int = 0
    """Unused: always 0."""
    refused: int = 0
    """Requests with deadlines that were refused or whose worker failed."""
    latencies: tuple[tuple[int, int], ...] = ()
    """(bucket, requests) of the requests that have run, for a model whose plan has an SLO. Ascending buckets, as in
    `horologe_common.latency_buckets`. A latency is the time from Submit to Result and `controller.margin_ns`."""
    late: int = 0
    """Unused: always 0."""


class PipelineArrivals(Message, frozen=True):
    """Queries of a pipeline that have arrived at the selectors, also those that a selector has refused."""

    pipeline: str
    arrivals: tuple[tuple[int, int], ...]
    """(age of the bin, queries), as in `ModelEvents`."""


class DeviceState(Message, frozen=True):
    """A share of a device that actions can be planned for."""

    worker: str
    share: int
    hardware: str
    """Hardware type, by which plans name pools."""
    models: tuple[str, ...] = ()
    """Keys of the models that the plan in force keeps resident on it."""
    loaded: tuple[str, ...] = ()
    """Those of `models` that are loaded."""
    percent: float = 100.0
    """Part of the device's compute resources that the share may use."""
    device_id: str = ""
    """Physical device. Shares with the same id are neighbours."""


class Events(Message, frozen=True, tag=62):
    """Events of a cluster, from the controller to a tuner that has sent a ResourcePlan, at a constant interval."""

    number: int
    """Counted by the controller for each tuner from 1: a gap means that an earlier message is missing."""
    span_ns: int
    """Time that the message covers, up to now."""
    bin_ns: int
    models: tuple[ModelEvents, ...]
    devices: tuple[DeviceState, ...] | None = None
    """None: as in the last message that had them."""
    plan: int = 0
    """Number of the plan in force; 0: none."""
    pipelines: tuple[PipelineArrivals, ...] = ()
    """Only pipelines with arrivals."""


class PlannedModel(Message, frozen=True):
    """Resources of a model: `shares` devices of type `hardware` hold it, and run it in batches of `max_batch` rows.

    While no device of the type is connected, all devices may run the model. If a plan has several entries for a model,
    the model has the workers of all of them, and the largest of their batches.
    """

    model: str
    """Name, or key `name/version`. A name stands for all versions."""
    shares: int
    max_batch: int
    hardware: str = ""
    """Empty: any type."""
    workers: tuple[str, ...] = ()
    """Names (`worker.name`) of the workers whose shares hold the model, whatever `shares` is. While none of them is
    connected, `shares` and `hardware` decide."""
    exec_ns: dict[int, int] = msgspec.field(default_factory=dict)
    """Predicted duration of a batch by its size, on a share of `workers` beside its neighbours. It replaces the
    worker's profile, which is scaled for other sizes, until there are measurements."""
    standby: tuple[str, ...] = ()
    """Names of workers whose shares keep the model loaded and do not run it. While none of `workers` is connected, the
    first of them that has loaded the model runs it."""
    slo_ns: int = 0
    """SLO that `ModelEvents.latencies` count by. 0: latencies are not counted."""


class ResourcePlan(Message, frozen=True, tag=63):
    """Resources of models, from a tuner to the controller. It replaces the plan before. Other models are not affected.

    It stays in force when the tuner disconnects. Without models it only subscribes to Events.
    """

    number: int
    models: tuple[PlannedModel, ...] = ()


class Tune(Message, frozen=True, tag=64):
    """A call of an operator, from a client to the tuner. Only clients that may manage can apply or withdraw."""

    id: int
    command: Literal["apply", "withdraw", "status", "arrivals"]
    document: bytes = b""
    """apply: the plan in JSON. withdraw, arrivals: the name of the pipeline."""
    dry_run: bool = False
    """Only report decisions of this plan."""


class Tuning(Message, frozen=True, tag=65):
    """Answer to Tune. `document`: the status of the tuner in JSON; after `arrivals`, the pipeline's recent arrivals."""

    id: int
    document: bytes = b""
    status: int = Status.OK
    reason: str = ""


class QueriesArrived(Message, frozen=True, tag=66):
    """Queries of pipelines that have arrived in this turn, from a selector to the controller.

    Queries that the selector refuses count, best-effort queries do not.
    """

    counts: tuple[tuple[str, int], ...]
    """(pipeline, queries)."""


TuningMessage: TypeAlias = Events | ResourcePlan | QueriesArrived | Tune | Tuning
