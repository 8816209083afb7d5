"""Overload of the process: what its turns are too long for is refused at once, a single stall refuses nothing."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.frontend_builders import connected_frontend
from harness.builders import a_predict, some_bytes
from horologe_common.clock import ms, s, us
from horologe_common.core.protocol import PeerDisconnected
from horologe_common.status import Refused
from horologe_common.wire import Query
from horologe_frontend.core.overload import REFUSED_ALONE, REFUSED_AMONG_OTHERS, SendDelays, TurnLimit


def accepted(limit: TurnLimit, requests: int, budget_ns: int) -> int:
    """Return how many of these requests of one turn are accepted."""
    count = 0
    for _ in range(requests):
        try:
            limit.accept(budget_ns)
        except Refused:
            continue
        count += 1
    return count


def turns(
    limit: TurnLimit, count: int, requests: int, cost_ns: int, budget_ns: int, refusal_part: float = 1 / 6
) -> int:
    """Play turns of `cost_ns` for each accepted request, a part of it for others; return how many the last accepts."""
    number = 0
    for turn in range(count):
        number = accepted(limit, requests, budget_ns)
        limit.end_turn(ms(100) * (turn + 1), round(cost_ns * (number + (requests - number) * refusal_part)))
    return number


@pytest.mark.parametrize(("requests", "budget_ms"), [(200, 25), (1000, 500)])
def test_what_fits_into_its_budget_is_accepted(requests: int, budget_ms: int) -> None:
    limit = TurnLimit()
    turns(limit, 20, requests, us(50), ms(25))
    assert accepted(limit, requests, ms(budget_ms)) == requests


def test_more_than_fits_into_its_budget_is_refused() -> None:
    """Nine tenths of 25 ms are 1.5 turns of 300 requests of 50 us. Six refused requests count as one."""
    limit = TurnLimit()
    turns(limit, 100, 1000, us(50), ms(25))
    assert 150 <= accepted(limit, 1000, ms(25)) <= 330
    with pytest.raises(Refused) as refused:
        limit.accept(ms(25))
    assert refused.value.retry_after_ns > 0


@pytest.mark.parametrize("refusal_part", [0.1, 0.5])
def test_the_limit_holds_whatever_a_refusal_costs(refusal_part: float) -> None:
    """Refusals that cost more than assumed do not make accepted requests look costly, until none is accepted."""
    limit = TurnLimit()
    turns(limit, 200, 300, us(50), ms(25), refusal_part)
    turns(limit, 200, 500, us(50), ms(25), refusal_part)
    number = accepted(limit, 500, ms(25))
    assert 200 <= number <= 330
    predicted_ns = number * limit.cost_ns + (500 - number) * limit.refusal_ns
    assert predicted_ns == pytest.approx(us(50) * (number + (500 - number) * refusal_part), rel=0.1)


def test_late_answers_shorten_turns_and_their_absence_lengthens_them_again() -> None:
    limit = TurnLimit()
    turns(limit, 20, 1000, us(50), ms(25))
    for turn in range(20):
        limit.note_late()
        accepted(limit, 100, ms(25))
        limit.end_turn(ms(turn), us(50) * 100)
    assert turns(limit, 1, 1000, us(50), ms(25)) < 130
    assert turns(limit, 100, 1000, us(50), ms(25)) > 250


def test_one_stall_refuses_nothing_that_has_time() -> None:
    """A turn of 90 ms among turns of 3 ms moves the cost of a request by an eighth of the difference."""
    limit = TurnLimit()
    turns(limit, 20, 64, us(50), ms(50))
    accepted(limit, 64, ms(50))
    limit.end_turn(ms(3000), ms(90))
    assert accepted(limit, 64, ms(50)) == 64


def test_a_refusal_says_whether_other_requests_are_the_cause() -> None:
    limit = TurnLimit()
    turns(limit, 20, 64, us(50), ms(50))
    reasons = []
    for _ in range(2):
        with pytest.raises(Refused) as refused:
            limit.accept(us(1))
        reasons.append(str(refused.value))
    assert reasons == [REFUSED_ALONE, REFUSED_AMONG_OTHERS]


def test_a_request_read_after_a_long_turn_has_waited_for_half_of_it() -> None:
    limit = TurnLimit()
    limit.end_turn(ms(100), ms(10))
    assert limit.waited_ns(ms(100)) == ms(5)
    assert limit.waited_ns(ms(103)) == ms(2)
    assert limit.waited_ns(ms(200)) == 0


def test_a_long_stall_does_not_refuse_for_long() -> None:
    """After turns of 100 ms, turns of the usual length are accepted whole again within 50 turns."""
    limit = TurnLimit()
    turns(limit, 20, 100, us(50), ms(25))
    for turn in range(20):
        accepted(limit, 100, ms(25))
        limit.end_turn(ms(turn), ms(100))
    for turn in range(50):
        number = accepted(limit, 100, ms(25))
        limit.end_turn(ms(turn), us(50) * number + us(8) * (100 - number))
    assert accepted(limit, 100, ms(25)) == 100


def test_what_a_request_exceeds_the_fastest_one_by_is_its_wait() -> None:
    delays = SendDelays()
    assert delays.waited_ns(1_000, "far", sent_ns=700_000) == 0, "the first one has nothing to compare with"
    assert delays.waited_ns(1_500, "far", sent_ns=700_400) == 100
    assert delays.waited_ns(2_000, "far", sent_ns=701_200) == 0, "faster than those before"
    assert delays.waited_ns(2_500, "far", sent_ns=701_200) == 500
    assert delays.waited_ns(2_500, "other", sent_ns=2_400) == 0, "every client has a clock of its own"


def test_the_fastest_request_is_forgotten_after_two_windows() -> None:
    delays = SendDelays()
    delays.waited_ns(s(1), "a", s(1))
    assert delays.waited_ns(s(62), "a", s(62) - 50) == 50, "in the next window"
    assert delays.waited_ns(s(123), "a", s(123) - 50) == 0, "the clocks may have drifted apart"
    assert delays.waited_ns(s(900), "a", s(900) - 70) == 0


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1), st.integers(-(10**15), 10**15))
def test_the_offset_of_a_clock_does_not_matter(requests: list[tuple[int, int]], offset_ns: int) -> None:
    near, far, now_ns = SendDelays(), SendDelays(), 0
    for pause_ns, wait_ns in requests:
        now_ns += pause_ns + wait_ns
        measured_ns = near.waited_ns(now_ns, "a", now_ns - wait_ns)
        assert 0 <= measured_ns <= wait_ns
        assert far.waited_ns(now_ns, "a", now_ns - wait_ns + offset_ns) == measured_ns


def test_the_wait_in_sockets_is_part_of_the_budget() -> None:
    frontend = connected_frontend()
    for waited_ns in (0, ms(30)):
        predict = msgspec.structs.replace(a_predict(1 + waited_ns, "one", 100), sent_ns=s(5) - waited_ns)
        frontend.handle(s(5), "client/aa", predict, [some_bytes()])
    budgets = [out.message.budget_ns for out in frontend.out if isinstance(out.message, Query)]
    assert budgets == [ms(100), ms(70)]
    frontend.handle(s(5), "client/aa", PeerDisconnected("client/aa"), ())
    assert not frontend._builder.send_delays._bases
