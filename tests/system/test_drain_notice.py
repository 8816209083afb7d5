"""The time between SIGTERM and the drain, in which load balancers notice: `links.notice_ns`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from horologe_common.clock import ms, s
from horologe_common.core.protocol import PeerConnected
from horologe_common.wire import Ping, Pong
from reactors import no_signals, start

if TYPE_CHECKING:
    from pathlib import Path

    from reactors import Running

__all__ = ["no_signals", "start"]


class Drain:
    """A core's drain, which ends when `finished` is set."""

    def __init__(self, running: Running) -> None:
        self.begun, self.finished = threading.Event(), threading.Event()
        for name, method in (("drain", self.begun.set), ("drained", self.finished.is_set)):
            setattr(running.core, name, method)


def test_a_process_accepts_connections_and_works_until_the_notice_is_over(start: Any, tmp_path: Path) -> None:
    service = start("controller", bind=(f"unix://{tmp_path}/c",), notice_ns=s(60), drain_ns=s(60))
    drain = Drain(service)
    service.signal()
    service.wait_until(lambda: service.reactor.is_stopping)
    peer = start("worker", connect=(f"unix://{tmp_path}/c",))
    peer.core.wait_for(PeerConnected)
    peer.say(service.core.address, Ping(3))
    assert peer.core.wait_for(Pong)[0].sent_ns == 3
    assert not drain.begun.is_set()
    assert not service.reactor.draining.is_set()
    service.stop()  # a second signal ends it at once


@pytest.mark.parametrize("notice_ns", [0, ms(50)])
def test_the_drain_begins_after_the_notice(start: Any, tmp_path: Path, notice_ns: int) -> None:
    service = start("controller", bind=(f"unix://{tmp_path}/c",), notice_ns=notice_ns, drain_ns=s(60))
    drain = Drain(service)
    service.signal()
    assert drain.begun.wait(10)
    assert service.reactor.draining.is_set()
    assert service.reactor.is_running
    drain.finished.set()
    service.join()


def test_the_notice_is_a_part_of_the_time_to_drain(start: Any, tmp_path: Path) -> None:
    service = start("controller", bind=(f"unix://{tmp_path}/c",), notice_ns=s(3600), drain_ns=ms(50))
    drain = Drain(service)
    service.signal()
    service.join()
    assert drain.begun.is_set()
    assert not drain.finished.is_set()
