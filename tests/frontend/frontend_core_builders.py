"""Builders for test_frontend_core.py and test_frontend_calls.py."""

from __future__ import annotations

from typing import Any

from harness.builders import a_state, some_bytes
from horologe_common.core.protocol import PeerConnected
from horologe_common.wire import (
    Models,
    Predict,
)
from horologe_frontend.core.frontend import Frontend
from horologe_frontend.settings import FrontendSettings

CLIENT, SELECTOR, CONTROLLER, WORKER = "client/aa", "selector/0#1", "controller/0#1", "worker/0#1"


def digest(header: bytes, buffers: Any) -> bytes:
    return header + b"".join(map(bytes, buffers))


def a_frontend(spec: Any = None, **settings: Any) -> Frontend:
    """Return a frontend with selector, controller and worker, and one model."""
    frontend = Frontend("frontend/0#1", FrontendSettings(**settings), digest)
    for address in (SELECTOR, CONTROLLER, WORKER):
        frontend.handle(0, address, PeerConnected(address), ())
    frontend.handle(0, CONTROLLER, Models(0, (a_state(spec),)), ())
    frontend.handle(0, SELECTOR, Models(0, ()), ())  # it has no pipelines
    return frontend


def send_predict(frontend: Frontend, predict: Predict, now_ns: int = 0, buffers: Any = None) -> None:
    rows = predict.inputs[0].shape[0] if predict.inputs else 0
    frontend.handle(now_ns, CLIENT, predict, [some_bytes(rows)] if buffers is None else buffers)
    frontend.tick(now_ns)
