"""Settings of the selector."""

import msgspec

from horologe_common.clock import ms, s


class SelectorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Caching, and how long to remember; what is learned from feedback, and where that is kept."""

    name: str = "0"
    """Number of this selector among several."""
    cache_bytes: int = 64 << 20
    """Prediction cache, keys and bookkeeping included."""
    cache_ttl_ns: int = s(60)
    """How long a cached prediction is served, unless its model says otherwise."""
    store: str = "sqlite"
    """Where applications and what they have learned are kept: memory (forgotten at a restart), sqlite (a file in
    `state`, of this selector alone) or redis (shared by several)."""
    state: str = ".cache/horologe"
    """Folder of SQLite's file, `selector-NAME.sqlite`."""
    redis: str = "redis://127.0.0.1:6379/0"
    """URL of the Redis; also `rediss://` and `unix://`. What it acknowledges is only durable with `appendonly yes` and
    `appendfsync always`."""
    store_timeout_ns: int = s(1)
    """What is not done by then, the store is away."""
    store_pause_ns: int = ms(500)
    """A store that is away is tried again this often."""
    store_queue: int = 10_000
    """Messages that may wait for the store."""
    applications: int = 1000
    """That may be declared."""
    contexts_memory: int = 20_000
    """States held in memory, of all applications, a kilobyte each; the others are read from the store when they are
    asked for."""
    context_read_ns: int = ms(20)
    """How long a state is waited for. A request whose state is not there by then is that of a new context."""
    context_refresh_ns: int = s(1)
    """A state that other selectors may have changed is read again, beside, when it was read so long ago."""
    predictions: int = 100_000
    """Answers of applications that feedback can name; the oldest are forgotten."""
    unsaved: int = 10_000
    """Observations that may wait to be saved or predicted again; feedback beyond is refused."""
    feedback_ns: int = s(5)
    """Feedback that is not saved by then is answered LOST; it may have been, and can be sent again."""
    losses: tuple[str, ...] = ()
    """Losses that applications may name beside the built-in ones, `NAME=MODULE:FUNCTION`: of (truth, value), 0 to 1."""
