"""The console over real sockets: its files, its keys, and its stream of events."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from fakes.key_entries import entry, keys_of
from horologe_common.status import Status
from horologe_common.wire import ActionRecord, Activity
from horologe_frontend.console.feed import VIEWERS_MAX
from horologe_frontend.console.traffic import Totals
from system.http_server_thread import HttpServerThread

if TYPE_CHECKING:
    from collections.abc import Iterator


def events(parts: Iterator[str], count: int) -> list[tuple[str, Any]]:
    """Read events until there are `count`. The stream ends when `parts` is deleted."""
    found: list[tuple[str, Any]] = []
    text = ""
    for part in parts:
        text += part
        *whole, text = text.split("\n\n")
        for event in whole:
            name, data = event.split("\n")
            found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
        if len(found) >= count:
            return found
    raise AssertionError(f"the stream ended after {len(found)} events")


def stream(http: HttpServerThread, **headers: str) -> Any:
    return httpx.stream("GET", f"{http.server.url}/console/events", headers=headers, timeout=10)


def test_the_page_needs_no_other_host(http: HttpServerThread) -> None:
    kinds = {"/console": "text/html", "/console/console.css": "text/css", "/console/console.js": "text/javascript"}
    for path, kind in kinds.items():
        response = httpx.get(f"{http.server.url}{path}")
        assert response.status_code == 200
        assert response.headers["content-type"].startswith(kind)
        assert "default-src 'none'" in response.headers["content-security-policy"]
        assert not re.search(r"""["'(`]//|://""", response.text), "an external address"


def test_frames_hold_activity_traffic_and_state(http: HttpServerThread) -> None:
    record = ActionRecord("infer", "worker/0#1", 0, "echo/10", 4, 3, 10, 20, 11, 22, 0)
    http.gateway.activity = Activity(0, 1, 30, (record,))
    with stream(http) as response:
        assert response.headers["content-type"] == "text/event-stream"
        (begin, facts), (name, first) = events(response.iter_text(), 2)[:2]
    assert (begin, name) == ("begin", "frame")
    assert len(facts["bounds_ms"]) > 30
    assert facts["frontend"] == "frontend/0"
    assert first["ready"] is True
    assert first["activity"][4] == [["infer", "worker/0#1", 0, "echo/10", 4, 3, 10, 20, 11, 22, 0, 0]]
    assert first["cluster"][3] == "edf"
    assert first["tuner"] == {"journal": []}


def test_traffic_counts_from_the_first_viewer_on(http: HttpServerThread) -> None:
    http.gateway.totals = [Totals("model", "echo/10", 1000, {}, (1000,))]
    with stream(http) as response:
        assert [data["traffic"] for name, data in events(response.iter_text(), 3) if name == "frame"] == [[], []]


def test_without_viewers_nothing_is_read(http: HttpServerThread) -> None:
    with stream(http) as response:
        events(response.iter_text(), 3)
    http.wait(lambda: http.server.clients.total.requests == 0)
    assert http.oip._console._task is None
    assert http.gateway.watches
    assert http.gateway.watches[-1].after == 1


def test_the_stream_needs_the_key_and_the_page_does_not() -> None:
    with HttpServerThread({"v": entry("secret", observe=True), "u": entry("user", infer=("*",))}) as http:
        assert httpx.get(f"{http.server.url}/console").status_code == 200
        assert httpx.get(f"{http.server.url}/console/events").status_code == 401
        assert httpx.get(f"{http.server.url}/console/other").status_code == 401
        with stream(http, Authorization="Bearer secret") as response:
            assert response.status_code == 200
            text = response.iter_text()
            events(text, 1)
            http.gateway.core.access.replace_keys(keys_of("other"))
            for _ in text:  # the withdrawn key ends the stream
                pass
        with stream(http, Authorization="Bearer secret") as response:
            assert response.status_code == 401


def test_pages_of_other_sites_get_no_stream(http: HttpServerThread) -> None:
    response = httpx.get(f"{http.server.url}/console/events", headers={"Sec-Fetch-Site": "cross-site"})
    assert response.status_code == 403
    assert http.gateway.watches == []


def test_a_missing_controller_is_reported(http: HttpServerThread) -> None:
    http.gateway.activity = Activity(0, status=int(Status.LOST), reason="the controller is not connected")
    with stream(http) as response:
        frame = events(response.iter_text(), 2)[1][1]
    assert frame["missing"] == ["the controller is not connected"]
    assert "activity" not in frame


def test_streams_are_limited_and_end_at_shutdown(http: HttpServerThread) -> None:
    with ExitStack() as viewers:
        streams = [viewers.enter_context(stream(http)).iter_text() for _ in range(VIEWERS_MAX)]
        for parts in streams:
            events(parts, 1)
        refused = httpx.get(f"{http.server.url}/console/events")
        assert refused.status_code == 429
        http.stop()
        with pytest.raises(AssertionError, match="ended"):
            events(parts, 10_000)
