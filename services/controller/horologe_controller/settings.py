"""Settings of the controller."""

from typing import Literal

import msgspec

from horologe_common.clock import ms, s


class ControllerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How actions are planned."""

    name: str = "0"
    """There is one controller."""
    scheduler: str = "horologe"
    """horologe; clockwork, orloj, clipper, nexus and deferred (Symphony) do as those systems do; edf and fifo (which
    refuses nothing) are baselines."""
    lookahead_ns: int = ms(5)
    """Each lane of each share is given work for this long (Clockwork appendix B)."""
    in_flight: int = 2
    """INFERs outstanding per share at most: with actions shorter than a message's way, more would only be smaller."""
    window_ns: int = 0
    """An INFER that has not begun this long after its predicted start is given up (and planned again while its
    deadlines allow); 0: it may begin as long as every deadline in it can be kept."""
    admission: bool = True
    """Refuse on arrival what the work ahead leaves no time for. Off: as Clockwork's appendix B has it, a request waits
    until not even a batch of its own could finish in time."""
    margin_ns: int = ms(1)
    """The way back to the client, added to what is measured of it."""
    return_quantile_window: int = 200
    """Results over which the way back is measured."""
    action_grace_ns: int = ms(250)
    """After the predicted end of an action plus this, its requests are planned elsewhere, its worker is told to drop it
    if it has not begun, and its share is not planned for until it is heard of."""
    load_pause_ns: int = ms(10)
    """A share that refuses to load a model is not asked for it again for this long, and for twice as long after each
    further refusal."""
    load_pause_most_ns: int = s(5)
    """That pause at most. A LOAD that succeeds ends it, and so does the worker's next registration."""
    ping_ns: int = ms(250)
    """Between pings of a worker (clock offset)."""
    max_queued: int = 50_000
    """Requests waiting for execution; one more is refused."""
    preload: bool = True
    """Load admitted models into free pages before they are asked for."""
    clipper_increase: float = 1.0
    """Rows by which the batch limit of a model on a share grows with each full batch within the SLO."""
    clipper_backoff: float = 0.9
    """What is left of that limit after a batch that took longer than the SLO."""
    clipper_quantile_regression: bool = False
    """Instead, the limit is the largest batch of which, by a line through recent ones, 99% are within the SLO."""
    clipper_delay_ns: int = 0
    """How long the first request of a batch smaller than the limit waits for more."""
    nexus_slo_part: float = 0.5
    """A model's batches are planned to take this part of its SLO: a request waits for one and runs in the next."""
    nexus_deviations: float = 0.0
    """Standard deviations that are added to mean times. The paper plans with a time for each size, its implementation
    with one deviation more than the mean."""
    deferred_slo_part: float = 0.5
    """Late requests do not hold up a batch that others can fill and that takes this part of their SLO; 0: none gives
    way to a larger batch."""
    deferred_slack_ns: int = 0
    """How much sooner a batch stops waiting for more than its first deadline requires."""
    orloj_order: Literal["earliest", "latest"] = "earliest"
    """Which batch size `orloj` takes where there are enough requests for several: the one with the earliest deadline
    (ORLOJ section 3.2) or with the latest (line 16 of its algorithm 1); of those with the same, the largest."""
    orloj_b_per_ms: float = 1e-4
    """Of the delay that `orloj` anticipates for a request that it does not take now (ORLOJ section 4.1)."""
