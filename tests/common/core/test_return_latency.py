"""The path latency after a stall of a peer."""

from __future__ import annotations

from horologe_common.clock import ms, s
from horologe_common.core.return_latency import PING_INTERVAL_NS, ReturnLatency
from horologe_common.wire import Pong

WORKER, FRONTEND = "worker/0#1", "frontend/0#1"
STALL_NS = ms(800)


def test_pongs_that_waited_for_the_end_of_one_stall_count_once() -> None:
    latency = ReturnLatency()
    for peer in (WORKER, FRONTEND):
        latency.add_peer(peer)
    waiting: list[int] = []
    for now_ns in range(s(10), s(13), PING_INTERVAL_NS):
        stalled = s(11) <= now_ns < s(11) + STALL_NS
        list(latency.pings(now_ns))
        waiting.append(now_ns)
        if not stalled:
            for sent_ns in waiting:
                latency.on_pong(now_ns + ms(1), WORKER, Pong(sent_ns, 0))
            waiting.clear()
            latency.on_pong(now_ns + ms(1), FRONTEND, Pong(now_ns, 0))
        if now_ns >= s(11) + STALL_NS:
            assert latency.path_ns[FRONTEND] <= ms(2)
