"""The roles of the cores that may send each message to a selector."""

from __future__ import annotations

from horologe_common.wire import (
    Answer,
    ApplicationInfo,
    CallTaken,
    Cancel,
    Declare,
    Dispatch,
    Drain,
    DriverReady,
    Feedback,
    ItemsTaken,
    ModelCall,
    Models,
    Outcome,
    Outputs,
    PipelineInfo,
    Pong,
    Query,
    Rollback,
    RunDone,
    RunItem,
    Settle,
    Ship,
    Withdraw,
)

FRONTEND, CONTROLLER, WORKER, DRIVER = ("frontend/",), ("controller/",), ("worker/",), ("driver/",)
HOLDERS = ("frontend/", "selector/")
SENDERS: dict[type, tuple[str, ...]] = {
    **dict.fromkeys((Query, Drain, Feedback, Declare, Withdraw, Rollback, ApplicationInfo, PipelineInfo), FRONTEND),
    **dict.fromkeys((Models, Settle, Dispatch), CONTROLLER),
    **dict.fromkeys((ModelCall, CallTaken, RunDone, RunItem, DriverReady), DRIVER),
    **dict.fromkeys((Cancel, ItemsTaken, Ship), HOLDERS),
    Answer: ("selector/",),
    Outcome: (*CONTROLLER, "selector/"),
    Outputs: (*WORKER, "selector/"),
    Pong: (*FRONTEND, *CONTROLLER, *WORKER, *DRIVER),
}
"""Prefixes of addresses by message. A selector sends itself the outcomes of its pipelines."""
