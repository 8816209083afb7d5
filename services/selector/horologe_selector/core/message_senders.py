"""The roles of the cores that may send each message to a selector."""

from __future__ import annotations

from horologe_common.wire import (
    ApplicationInfo,
    Cancel,
    Declare,
    Dispatch,
    Drain,
    DriverReady,
    Feedback,
    ModelCall,
    Models,
    Outcome,
    Outputs,
    PipelineInfo,
    Pong,
    Query,
    Rollback,
    RunDone,
    Settle,
    Ship,
    Withdraw,
)

FRONTEND, CONTROLLER, WORKER, DRIVER = ("frontend/",), ("controller/",), ("worker/",), ("driver/",)
HOLDERS = ("frontend/", "selector/")
SENDERS: dict[type, tuple[str, ...]] = {
    **dict.fromkeys((Query, Drain, Feedback, Declare, Withdraw, Rollback, ApplicationInfo, PipelineInfo), FRONTEND),
    **dict.fromkeys((Models, Settle, Dispatch), CONTROLLER),
    **dict.fromkeys((ModelCall, RunDone, DriverReady), DRIVER),
    **dict.fromkeys((Cancel, Ship), HOLDERS),
    Outcome: (*CONTROLLER, "selector/"),
    Outputs: (*WORKER, "selector/"),
    Pong: (*FRONTEND, *CONTROLLER, *WORKER, *DRIVER),
}
"""Prefixes of addresses by message. A selector sends itself the outcomes of its pipelines."""
