"""Heartbeats: which links are lost, counted in own heartbeats. No clock: `beat` is called by the test."""

from __future__ import annotations

from horologe_common.transport.heartbeats import BEATS, Heartbeats
from horologe_common.transport.peers import Route

LEFT, RIGHT = Route("left", None), Route("right", b"1")  # type: ignore[arg-type]


class Beats:
    """Heartbeats of a process with two links, and what they send and lose."""

    def __init__(self) -> None:
        self.sent: list[Route] = []
        self.lost: list[tuple[Route, str]] = []
        self.heartbeats = Heartbeats(self.sent.append, lambda route, reason: self.lost.append((route, reason)))
        self.heartbeats.add(LEFT)
        self.heartbeats.add(RIGHT)

    def beat(self, times: int, *heard: Route) -> None:
        for _ in range(times):
            for route in heard:
                self.heartbeats.record(route)
            self.heartbeats.beat()


def test_a_link_without_a_heartbeat_is_lost_and_the_other_is_not() -> None:
    beats = Beats()
    beats.beat(BEATS, LEFT)
    assert beats.sent == [LEFT, RIGHT] * BEATS
    assert beats.lost == []
    beats.beat(1, LEFT)
    assert beats.lost == [(RIGHT, "silent")]
    beats.beat(1, LEFT)
    assert beats.lost == [(RIGHT, "silent")], "it is no link any more"
    assert beats.sent[-2:] == [LEFT, LEFT]


def test_after_a_stall_of_this_process_a_single_heartbeat_is_missed() -> None:
    """A loop that stood still for minutes has sent none itself in that time."""
    beats = Beats()
    beats.beat(1, LEFT, RIGHT)
    beats.beat(1)
    assert beats.lost == []


def test_a_broken_connection_has_the_time_of_one_heartbeat_to_come_back() -> None:
    beats = Beats()
    beats.heartbeats.hasten(LEFT)
    beats.heartbeats.hasten(RIGHT)
    beats.beat(1)
    beats.beat(1, RIGHT)
    assert beats.lost == [(LEFT, "silent")]


def test_a_failed_link_is_lost_for_its_first_reason_whatever_arrives() -> None:
    beats = Beats()
    beats.heartbeats.fail(LEFT, "refused")
    beats.heartbeats.fail(LEFT, "failed")
    beats.beat(1, LEFT, RIGHT)
    assert beats.lost == [(LEFT, "refused")]


def test_a_link_that_is_made_again_counts_from_anew() -> None:
    beats = Beats()
    beats.heartbeats.fail(LEFT, "failed")
    beats.heartbeats.add(LEFT)
    beats.beat(BEATS)
    assert beats.lost == []


def test_a_removed_link_is_unknown() -> None:
    beats = Beats()
    beats.heartbeats.remove(LEFT)
    for change in (beats.heartbeats.record, beats.heartbeats.hasten, lambda route: beats.heartbeats.fail(route, "x")):
        change(LEFT)
    beats.beat(BEATS + 1, RIGHT)
    assert beats.lost == []
    assert LEFT not in beats.sent
