"""Settings of the frontend."""

import msgspec

from horologe_common.clock import ms, s


class FrontendSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What clients may ask of a frontend."""

    name: str = "0"
    """Number of this frontend among several."""
    clients: tuple[str, ...] = ("tcp://127.0.0.1:8003",)
    """ZeroMQ endpoints for clients."""
    grace_ns: int = ms(50)
    """How long after its deadline a request may still be answered, as LATE with data; then without."""
    best_effort_ns: int = s(30)
    """When a request without any deadline is answered at the latest."""
    max_pending: int = 20_000
    """Requests open at once; one more is refused."""
    max_request_bytes: int = 64 << 20
    """Tensor bytes of one request; more is TOO_LARGE."""
    staging_bytes: int = 1 << 30
    """Tensor bytes held in all; a request beyond is refused."""
    ask_ns: int = s(60)
    """How long repository load, cluster state and declarations may take."""
    default_lead_ns: int = ms(2)
    """So long before the deadline, or as long as the p99 of how late its timers lately were, an application's default
    is answered where the selector has not answered, which is told of that much less time; at most a quarter of it."""
    feedback_ns: int = s(10)
    """How long feedback may take to be durable; then it is LOST."""
    linger_ns: int = s(1)
    """How long after their deadline inputs are kept for a selector that does not release them."""
    sample_ns: int = s(1)
    """Where there is a profiler it is shown one finished request of each model and application this often; 0: none."""
    sample_burst: int = 20
    """So many of them at once after a pause."""
    sample_bytes: int = 4 << 20
    """Larger inputs are not shown."""
    sample_rate_bytes: int = 16 << 20
    """Bytes of samples in a second, all together."""
