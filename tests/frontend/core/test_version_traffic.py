"""Requests without a version reach the versions that the controller has chosen, in these parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from frontend.frontend_builders import CONTROLLER, NOW, SELECTOR, a_frontend, send_predict
from harness.builders import a_predict, a_spec, sent
from horologe_common.status import Status
from horologe_common.wire import Answer, Models, ModelState, Query, Settle, Settled, StreamLimits

if TYPE_CHECKING:
    from horologe_frontend.core.frontend import Frontend


def announce(frontend: Frontend, *traffic: float, state: str = "READY", **fields: Any) -> None:
    """Announce versions 1, 2, ... of a model with these parts. `state`: of the last one. `fields`: of the specs."""
    names = [str(number) for number in range(1, len(traffic) + 1)]
    states = [
        ModelState(
            a_spec("sum", version, cache=True, **fields), state if version == names[-1] else "READY", "why", part
        )
        for version, part in zip(names, traffic, strict=True)
        for spec in [a_spec("sum", version, cache=True, **fields)]
    ]
    frontend.handle(NOW, CONTROLLER, Models(0, tuple(states)), ())


def reached(frontend: Frontend, count: int) -> str:
    """Send requests without a version, and return the versions that they reach."""
    for number in range(count):
        send_predict(frontend, a_predict(1000 + number), NOW)
    queries = sent(frontend, Query, SELECTOR)
    for query in queries:
        frontend.handle(NOW, SELECTOR, Answer(query.id, int(Status.OK)), ())
    return "".join(query.model.partition("/")[2] for query in queries)


def test_the_chosen_version_gets_all_requests() -> None:
    frontend = a_frontend()
    announce(frontend, 1.0, 0.0)
    assert reached(frontend, 3) == "111"
    announce(frontend, 0.0, 1.0)
    assert reached(frontend, 3) == "222"
    announce(frontend, 0.0, 0.0)
    assert reached(frontend, 1) == "2", "the newest one, if none is chosen"


@pytest.mark.parametrize(("part", "versions"), [(0.25, "1112" * 10), (0.5, "12" * 20), (0.1, ("1" * 9 + "2") * 4)])
def test_a_canary_gets_every_so_many_requests(part: float, versions: str) -> None:
    frontend = a_frontend()
    announce(frontend, 1.0 - part, part)
    assert reached(frontend, 40) == versions


def test_the_count_goes_on_when_models_are_announced_again() -> None:
    frontend = a_frontend()
    announce(frontend, 0.75, 0.25)
    assert reached(frontend, 3) == "111"
    announce(frontend, 0.75, 0.25)
    assert reached(frontend, 1) == "2"


def test_a_request_that_names_a_version_reaches_it() -> None:
    frontend = a_frontend()
    announce(frontend, 0.5, 0.5)
    assert [frontend.catalogue.choose_model("sum", "1").version for _ in range(4)] == ["1"] * 4


def test_a_chosen_version_that_is_unavailable_is_not_replaced() -> None:
    frontend = a_frontend()
    announce(frontend, 0.0, 1.0, state="UNAVAILABLE")
    send_predict(frontend, a_predict(1), NOW)
    [answer] = sent(frontend, Answer)
    assert answer.status == Status.UNKNOWN_MODEL
    assert answer.reason == "model 'sum/2' is unavailable: why"


def test_a_settle_waits_for_queued_requests_of_a_version_that_lost_its_requests() -> None:
    frontend = a_frontend()
    announce(frontend, 1.0, 0.0)
    send_predict(frontend, a_predict(1), NOW)
    [query] = sent(frontend, Query, SELECTOR)
    announce(frontend, 0.0, 1.0)
    frontend.handle(NOW, CONTROLLER, Settle(1, ("sum/1", "sum/2"), ("sum/1",)), ())
    frontend.tick(NOW)
    assert not sent(frontend, Settled)
    frontend.handle(NOW, SELECTOR, Answer(query.id, int(Status.OK)), ())
    frontend.tick(NOW)
    assert [settled.id for settled in sent(frontend, Settled)] == [1]


def test_a_settle_does_not_wait_for_a_stream_that_has_sent_items() -> None:
    frontend = a_frontend()
    announce(frontend, 1.0, 0.0, streams=True)
    send_predict(frontend, a_predict(1, stream=StreamLimits()), NOW)
    [query] = sent(frontend, Query, SELECTOR)
    frontend.handle(NOW, CONTROLLER, Settle(1, ("sum/1", "sum/2"), ("sum/1",)), ())
    frontend.tick(NOW)
    assert not sent(frontend, Settled)
    frontend.handle(NOW, SELECTOR, Answer(query.id, int(Status.OK), more=True), ())
    frontend.tick(NOW)
    assert [settled.id for settled in sent(frontend, Settled)] == [1]
