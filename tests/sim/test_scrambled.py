"""All messages between the cores are sent twice, out of order and late: every request still gets its one answer."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from horologe_common.applications import Application
from horologe_common.clock import ms
from horologe_common.core.protocol import role
from horologe_common.wire import Envelope
from horologe_common.wire.frames import tensors
from horologe_profiler.settings import ProfilerSettings
from horologe_sim.engine.simulated_faults import Fault
from horologe_sim.scenario.scenario import Scenario
from horologe_sim.scenario.simulated_cluster import SimulatedCluster
from sim.sim_builders import a_scenario, an_entry, assert_at_rest, assert_one_answer_each, cut, kill, poisson, stall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_sim.engine.simulated_process import Process

SCRAMBLED_NS = ms(500)
SERVED_NS = SCRAMBLED_NS + ms(700)
"""From here on, all faults have ended, and requests are served as usual."""
PROCESSES = ("worker/0", "worker/1", "frontend", "selector", "controller", "profiler")


class Scrambler:
    """Sends each message of the cluster alone: `delayed` of them later, `resent` of them once more, within `within_ns`.

    A later message may travel over a later connection of the same processes: a process uses a new connection before its
    cores have handled that it is new. Messages of clients are sent as they are.
    """

    def __init__(self, house: SimulatedCluster, seed: int, delayed: float, resent: float, within_ns: int) -> None:
        self.sent = self.moved = 0
        self._until_ns = house.begin_ns + SCRAMBLED_NS
        self._events = house.world.events
        self._send = house.world.send_packet
        self._random = random.Random(seed)
        self._delayed, self._resent, self._within_ns = delayed, resent, within_ns
        house.world.send_packet = self.send_packet  # type: ignore[method-assign]

    def send_packet(
        self, source: Process, target: Process, envelopes: list[Envelope], buffers: Sequence[Buffer]
    ) -> None:
        begin = 0
        for envelope in envelopes:
            for message in envelope.messages:
                end = begin + len(tensors(message))
                packet = source, target, [Envelope(envelope.to, envelope.sender, [message])], list(buffers[begin:end])
                begin = end
                self._send_message(packet, "client" in (role(envelope.to), role(envelope.sender)))

    def _send_message(self, packet: tuple[Any, ...], is_clients: bool) -> None:
        self.sent += 1
        is_clients |= self._events.now_ns > self._until_ns
        late = not is_clients and self._random.random() < self._delayed
        twice = not is_clients and self._random.random() < self._resent
        if not late:
            self._send(*packet)
        for _ in range(late + twice):
            self.moved += 1
            at_ns = self._events.now_ns + self._random.randrange(1, self._within_ns)
            self._events.schedule(at_ns, self._send, *packet)


def a_case(
    rate: int, rows: int, scheduler: str, pages: int, seed: int, faults: Sequence[Fault], wire: bool
) -> Scenario:
    """Return a load while messages are scrambled, and another one later, which must be served."""
    entries = [
        an_entry("cached", cache=True, weights_mb=60.0),
        an_entry("large", count=2, weights_mb=150.0, input_ms=0.2, output_ms=0.1),
        *[an_entry(f"digits-{number}", exec_ms={1: 1.0, 8: 3.0}, accuracy=0.8, echo=False) for number in range(2)],
    ]
    scrambled = {"for_ns": SCRAMBLED_NS, "rows": rows, "cancel_share": 0.1, "cancel_ns": ms(3)}
    served = {"from_ns": SERVED_NS, "slo_ns": ms(300)}
    models, application = {"models": ("cached", "large*")}, {"application": "digits", "contexts": 3}
    return a_scenario(
        *entries,
        load=[
            poisson(rate, **models, **scrambled),
            poisson(rate / 2, **application, **scrambled),
            poisson(60, **models, **served),
            poisson(60, **application, **served),
        ],
        applications=(Application("digits", ("digits-0", "digits-1")),),
        scheduler=scheduler,
        split=True,
        workers=2,
        profiler=ProfilerSettings(),
        duration_ns=SERVED_NS + ms(500),
        warmup_ns=SERVED_NS,
        seed=seed,
        wire=wire,
        worker=msgspec.structs.replace(a_scenario().worker, pages_bytes=pages << 24),
        faults=tuple(faults),
    )


def draw_faults(rng: random.Random) -> list[Fault]:
    """Return up to three faults that end before requests are served as usual."""
    kinds = ((kill, 1, 250), (stall, 1, 150), (cut, 0, 100))
    drawn = []
    for _ in range(rng.randint(0, 3)):
        fault, shortest_ms, longest_ms = rng.choice(kinds)
        drawn.append(fault(rng.choice(PROCESSES), rng.randint(1, 400), rng.randint(shortest_ms, longest_ms)))
    return drawn


def draw_case(rng: random.Random) -> Scenario:
    """Return one of many scenarios, with its faults."""
    return a_case(
        rng.choice([100, 300, 900]),
        rng.randint(1, 3),
        rng.choice(["horologe", "clockwork", "edf"]),
        rng.choice([16, 24, 256]),
        rng.randint(0, 1000),
        draw_faults(rng),
        rng.random() < 0.5,
    )


def play(scenario: Scenario, seed: int, delayed: float, resent: float, within_ns: int) -> None:
    """Run a scenario with scrambled messages, and check that every request has its one answer and nothing is left."""
    house = SimulatedCluster(scenario)
    scrambler = Scrambler(house, seed, delayed, resent, within_ns)
    house.run()
    house.world.check()
    assert_one_answer_each(house)
    assert scrambler.sent > 100
    assert house.tally.count("OK") == sum(counts.sent for counts in house.tally.counts.values()) > 10
    house.world.kill("profiler")  # it always has runs in flight
    assert_at_rest(house)


@pytest.mark.parametrize("number", range(20))
def test_one_answer_each_whatever_the_order(number: int) -> None:
    rng = random.Random(number)
    rates = rng.choice([0.0, 0.05, 0.5]), rng.choice([0.0, 0.05, 1.0])
    play(draw_case(rng), number, *rates, rng.choice([ms(1), ms(20), ms(300)]))


@pytest.mark.parametrize("seed", range(600, 602))
def test_actions_of_a_lost_connection_do_not_change_the_pages_of_the_next(seed: int) -> None:
    play(a_case(900, 3, "edf", 16, 503, [cut("worker/1", 400, 88)], wire=True), seed, 0.05, 0.05, ms(300))
