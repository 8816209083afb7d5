"""Overload of the process itself: requests whose budgets are too short for its turns are refused before any work."""

from __future__ import annotations

import msgspec

from horologe_common.clock import NEVER_NS, s
from horologe_common.status import Refused

TURNS_MIN, TURNS_MAX = 1.5, 4.0
"""Turns that an answer takes: up to one until the request is read, its own, and one in which the Result arrives. With
clients that wait for their answers little arrives during a turn, and one is enough."""
LONGER, SHORTER = 1.2, 0.98
"""Factors of the number of turns: after a turn with late answers, after another."""
BUDGET_PART = 10
"""A tenth of the budget is left for the worker and for the way back."""
STEP, OUTLIER = 1 / 8, 2
"""Part of the prediction error of a turn by which the costs are corrected. A turn counts as at most twice as long as
predicted, so a stall moves them by an eighth."""
BASE_WINDOW_NS = s(60)
"""Clocks of two machines drift by about 50 us per second, so a base of the last one to two minutes is right to 6 ms."""
COUNTED_FROM = 16
"""Turns with fewer requests say little about the cost of one."""
REFUSED_ALONE = "its deadline leaves less time than the frontend takes for a request"
REFUSED_AMONG_OTHERS = "more requests came at once than the frontend can handle in time"
FIRST_REFUSAL_PART = 4
"""A refused request is assumed to take a quarter of the time of another, before turns have shown it: a sixth over the
SDK, half over HTTP."""


class BaseDelay(msgspec.Struct):
    """Least differences of clocks in a window of time, and in the one before."""

    end_ns: int
    present_ns: int = NEVER_NS
    before_ns: int = NEVER_NS


class SendDelays:
    """Time that requests have waited in sockets before they were read.

    Two monotonic clocks differ by a constant. The least difference of a client's recent requests is that of one which
    did not wait, and what another exceeds it by is its wait (the base delay of RFC 6817, section 2.4.2).
    """

    def __init__(self) -> None:
        self._bases: dict[str, BaseDelay] = {}
        """By client."""

    def waited_ns(self, now_ns: int, client: str, sent_ns: int) -> int:
        """Return the wait of a request that is read now, by its client's clock when it was sent."""
        base, difference_ns = self._bases.get(client), now_ns - sent_ns
        if base is None or now_ns >= base.end_ns:
            is_recent = base is not None and now_ns < base.end_ns + BASE_WINDOW_NS
            before_ns = base.present_ns if base is not None and is_recent else NEVER_NS
            base = self._bases[client] = BaseDelay(now_ns + BASE_WINDOW_NS, difference_ns, before_ns)
        base.present_ns = min(base.present_ns, difference_ns)
        return difference_ns - min(base.present_ns, base.before_ns)

    def drop_client(self, client: str) -> None:
        """Drop the state of a client that has disconnected."""
        self._bases.pop(client, None)


class TurnLimit:
    """Limits the requests that one turn accepts, by their budgets and by what requests have cost in recent turns."""

    def __init__(self) -> None:
        self.cost_ns = 0.0
        """Mean time by which an accepted request makes a turn longer; 0: not known yet, nothing is refused."""
        self.refusal_ns = 0.0
        """The same of a refused one."""
        self.turns = TURNS_MIN
        self._accepted = self._refused = 0
        self._late = False
        self._ended_ns = self._took_ns = 0

    def waited_ns(self, now_ns: int) -> int:
        """Return for how long a request that is read now has waited on average: half of a turn that has just ended."""
        return max(0, self._took_ns // 2 - (now_ns - self._ended_ns))

    def accept(self, budget_ns: int) -> None:
        """Count a request of this turn. Raise `Refused` if turns would take too long for its budget."""
        turn_ns = (self._accepted + 1) * self.cost_ns + self._refused * self.refusal_ns
        late_ns = int(self.turns * turn_ns) - budget_ns + budget_ns // BUDGET_PART
        if late_ns > 0:
            reason = REFUSED_AMONG_OTHERS if self._accepted or self._refused else REFUSED_ALONE
            self._refused += 1
            raise Refused(reason, retry_after_ns=late_ns)
        self._accepted += 1

    def note_late(self) -> None:
        """Record that a request was answered late in this turn."""
        self._late = True

    def end_turn(self, now_ns: int, took_ns: int) -> None:
        """Record the duration of the turn that accepted the last requests. It ends now."""
        self._ended_ns, self._took_ns = now_ns, took_ns
        accepted, refused = self._accepted, self._refused
        if accepted + refused >= COUNTED_FROM:
            self._correct_costs(accepted, refused, took_ns)
        if accepted or refused:
            factor = LONGER if self._late else SHORTER
            self.turns = min(TURNS_MAX, max(TURNS_MIN, self.turns * factor))
            self._late = False
        self._accepted = self._refused = 0

    def _correct_costs(self, accepted: int, refused: int, took_ns: int) -> None:
        """Correct both costs by the error of the turn's prediction (normalised least mean squares)."""
        if not self.cost_ns:
            self.cost_ns = took_ns / (accepted + refused / FIRST_REFUSAL_PART)
            self.refusal_ns = self.cost_ns / FIRST_REFUSAL_PART
            return
        predicted_ns = accepted * self.cost_ns + refused * self.refusal_ns
        step_ns = STEP * (min(took_ns, OUTLIER * predicted_ns) - predicted_ns) / (accepted**2 + refused**2)
        self.cost_ns = max(1.0, self.cost_ns + step_ns * accepted)
        self.refusal_ns = min(self.cost_ns, max(0.0, self.refusal_ns + step_ns * refused))
