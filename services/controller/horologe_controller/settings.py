"""Settings of the controller."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from horologe_common.clock import ms, s
from horologe_common.setting_ranges import NAME_PATTERN


class ControllerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scheduling, admission and the limits of requests and actions."""

    name: Annotated[str, Meta(pattern=NAME_PATTERN)] = "0"
    """Instance name. A cluster has one controller."""
    workers: Annotated[int, Meta(ge=0)] = 0
    """Number of workers of the cluster. Until so many have registered after a start, a model that none of them has is
    not UNKNOWN_MODEL: its requests wait, or are REFUSED. 0: not known, see `discovery_ns`. `horologe up` sets it."""
    discovery_ns: Annotated[int, Meta(ge=0)] = s(10)
    """Without `workers`: time after the start in which workers are expected to register."""
    scheduler: str = "horologe"
    """Scheduling policy. clockwork, orloj, clipper, nexus and deferred (Symphony) follow those systems. edf and fifo
    are baselines; fifo refuses nothing. auto: `horologe`, until the tuner finds that another one would have served
    clearly more of the recent requests (docs/scheduling.md)."""
    fairness: Literal["goodput", "fair"] = "goodput"
    """Objective of `horologe` under overload. goodput: the most requests, so models that take long per request are
    served last. fair: proportional fairness, the largest sum of ln(part served) over all requests' models. No model
    starves, and fewer requests are served in all (docs/scheduling.md)."""
    advance: Annotated[float, Meta(ge=0, le=1000)] = 2.0
    """How much the value of a batch counts for `horologe` beside its deadline: a batch goes earlier by this many mean
    batch durations if it serves e times as many requests for its time. While requests are lost, batches of cheap models
    go earlier still (docs/scheduling.md). 0: the last start that meets the deadline decides alone. Other values:
    experiments/results/schedulers.md. `auto` also rehearses 0.5 and 8."""
    lookahead_ns: Annotated[int, Meta(ge=0, le=s(10))] = ms(5)
    """Time for which each lane of each share is given work ahead (Clockwork appendix B)."""
    in_flight: Annotated[int, Meta(ge=1, le=1000)] = 2
    """Limit of pending INFERs per share. With actions shorter than the message latency, more would only make batches
    smaller. More may be pending for one return latency, and full ones for three."""
    window_ns: Annotated[int, Meta(ge=0)] = 0
    """Drop an INFER that has not begun this long after its predicted start, and plan its requests again while their
    deadlines allow. 0: it may begin as long as the scheduler allows: with `horologe`, while the last request of a
    static batch can be in time by the median."""
    admission: bool = True
    """Refuse a request on arrival if it would be late even with all shares running nothing but its model: clients learn
    of an overload at once, and fewer answers are a little late. Off: a request waits until not even a batch of its own
    could finish in time, as in Clockwork's appendix B (docs/scheduling.md)."""
    margin_ns: Annotated[int, Meta(ge=0)] = ms(1)
    """Reserved for the return to the client, in addition to the measured return latency. At most an eighth of the time
    that a request alone could wait."""
    return_latency_window: Annotated[int, Meta(ge=1, le=1_000_000)] = 200
    """Results over which the return latency is measured."""
    action_grace_ns: Annotated[int, Meta(ge=0)] = ms(250)
    """An action this long after its predicted end is overdue. Its requests are planned elsewhere, its worker drops it
    if it has not begun, and its share gets nothing more until a Result arrives."""
    load_backoff_ns: int = ms(10)
    """Pause before a LOAD is sent again to a share that refused it. It doubles with each further refusal."""
    load_backoff_max_ns: int = s(5)
    """Limit of that pause. A successful LOAD or the worker's next registration resets it."""
    ping_ns: int = ms(250)
    """Interval between pings of a worker (clock offset)."""
    events_ns: int = ms(100)
    """Interval between two messages with arrivals to a tuner. Without a tuner nothing is collected."""
    max_queued: int = 50_000
    """Limit of queued requests. Further requests are refused."""
    preload: bool = True
    """Load admitted models into free pages before the first request for them."""
    clipper_increase: Annotated[float, Meta(ge=0)] = 1.0
    """Rows by which the batch limit of a model on a share grows with each full batch within the SLO."""
    clipper_backoff: Annotated[float, Meta(gt=0, le=1)] = 0.9
    """Factor of the batch limit after a batch that took longer than the SLO."""
    clipper_quantile_regression: bool = False
    """Set the batch limit by quantile regression instead: the largest batch of which 99% are within the SLO, by a line
    through recent batches."""
    clipper_delay_ns: Annotated[int, Meta(ge=0)] = 0
    """Time that the first request of a batch smaller than the limit waits for more requests."""
    nexus_slo_part: Annotated[float, Meta(gt=0, le=1)] = 0.5
    """Part of the SLO that a model's batches are planned to take: a request waits for one and runs in the next."""
    nexus_deviations: Annotated[float, Meta(ge=0, le=100)] = 0.0
    """Standard deviations added to mean times. The paper plans with one time for each size. Its implementation adds one
    deviation to the mean."""
    deferred_slo_part: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """Late requests do not hold up a batch that others can fill and that takes this part of their SLO. 0: no request is
    dropped for a larger batch."""
    deferred_slack_ns: Annotated[int, Meta(ge=0)] = 0
    """Time by which a batch stops waiting earlier than its first deadline requires."""
    orloj_order: Literal["earliest", "latest"] = "earliest"
    """Batch size that `orloj` chooses if there are enough requests for several: the size with the earliest deadline
    (ORLOJ section 3.2) or with the latest (line 16 of its algorithm 1). Of equal deadlines, the largest size."""
    orloj_b_per_ms: float = 1e-4
    """Rate b of the delay that `orloj` anticipates for a request that it does not choose now (ORLOJ section 4.1)."""
