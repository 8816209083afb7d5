"""History of one request from a recording: its times, the work ahead of it, and the actions that ran it."""

from __future__ import annotations

import msgspec

from horologe_controller.core.cluster.prediction_source import PredictionSource
from horologe_controller.core.scheduling.decisions import Reason


class Work(msgspec.Struct):
    """Work for one model: batches that ran or were sent, or requests that waited."""

    model: str
    requests: int = 0
    batches: int = 0
    work_ns: int = 0


class LoadHistory(msgspec.Struct):
    """A LOAD that a request has waited for. Times are on the controller's clock; 0: not recorded."""

    model: str
    worker: str
    share: int
    sent_ns: int
    expected_ns: int
    evicted: list[str] = []
    """Models that were unloaded to make room."""
    begin_ns: int = 0
    end_ns: int = 0
    status: str = ""
    """Empty: no Result was recorded."""


class Attempt(msgspec.Struct):
    """An INFER with the request. Times are on the controller's clock; 0: not recorded."""

    action_id: int
    worker: str
    share: int
    batch_size: int
    requests: int
    sent_ns: int
    expected_ns: int
    planned_begin_ns: int
    planned_end_ns: int
    begin_ns: int = 0
    end_ns: int = 0
    status: str = ""
    """Of the request's row in the Result. Empty: no Result was recorded. LOST: the worker disconnected, HUNG: the
    action was long overdue, at `failed_ns`. A Result that comes later replaces HUNG."""
    reason: str = ""
    failed_ns: int = 0
    hung_model: str = ""
    """Model of the action that was overdue, this one or one before it on the share. Empty: the worker itself hung."""
    source: PredictionSource = PredictionSource()
    """What the prediction was made of."""
    before: list[Work] = []
    """Actions that ran on the share between the Submit and the begin of this one, most work first."""
    overrun_ns: int = 0
    """Sum of the times by which they took longer than predicted."""


class SubmitHistory(msgspec.Struct):
    """A Submit for the request: one for each model that was asked, or for each stage of a pipeline."""

    submitter: str
    submit_id: int
    model: str
    arrived_ns: int
    deadline_ns: int
    """Planned: earlier than the client's by margin and return latency. That of the Submit if it was not queued."""
    expected_ns: int = 0
    """Predicted duration of a batch of its own, on the fastest share; 0: no share can run the model. It is of its
    arrival; if `is_too_long`, of its refusal."""
    source: PredictionSource = PredictionSource()
    """What this prediction was made of."""
    shorter: dict[int, int] = {}
    """Predicted durations of smaller batch sizes on the same share."""
    dispatch_ns: int = 0
    """Time from a decision until an idle device begins."""
    shares: int = 0
    """Shares that can run the model."""
    resident: int = 0
    """Shares on which the model was resident when the request arrived."""
    load: LoadHistory | None = None
    """The LOAD that it waited for if that was none."""
    queued: list[Work] = []
    """Requests with earlier deadlines that waited, most work first."""
    running: list[Work] = []
    """Batches that were sent before, with the work that was left of them."""
    executed: list[Work] = []
    """Without an action: batches that ended between its arrival and its end, on all shares."""
    attempts: list[Attempt] = []
    status: str = ""
    """Of the Outcome. Empty: the outputs were the answer, or it was not recorded."""
    reason: str = ""
    missing_ns: int = 0
    """Time by which the deadline was too early: as the controller answered, or for a request that waited, until
    the work ahead of it at its end is done. 0: not known, or it would not help."""
    ended_ns: int = 0
    step: int = 0
    """Number of the step of a stream. 0: it is none."""
    rows: int = 1
    stage: str = ""
    """Stage of a pipeline that it is for. Empty: it is for the request itself."""
    request_id: str = ""
    """Holder and id of the stage's inputs."""

    @property
    def is_too_long(self) -> bool:
        """Return whether it was refused because even alone it could not be in time."""
        return self.reason.startswith(Reason.EXECUTION_TOO_LONG.sentence)


class RequestHistory(msgspec.Struct):
    """A request as the frontend sees it. Times are on the frontend's clock."""

    client: str
    client_id: int
    name: str
    """The client's own name, such as the `id` of an HTTP request."""
    model: str
    """Model or application."""
    arrived_ns: int
    holder: str
    request_id: int = 0
    """Id of its inputs at the frontend; 0: it was rejected on arrival."""
    deadline_ns: int = 0
    best_effort: bool = False
    answered_ns: int = 0
    status: str = ""
    """Empty: the recording ends before the answer."""
    reason: str = ""
    is_pipeline: bool = False
    """A selector has run it as a query of a pipeline."""
    submits: list[SubmitHistory] = []
