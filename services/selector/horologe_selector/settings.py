"""Settings of the selector."""

import msgspec

from horologe_common.clock import s


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Caching, and how long to remember."""

    name: str = "0"
    """Number of this selector among several."""
    cache_bytes: int = 64 << 20
    """Prediction cache, keys and bookkeeping included."""
    cache_ttl_ns: int = s(60)
    """How long a cached prediction is served, unless its model says otherwise."""
    store: str = "memory"
    """Where applications and what they have learned are kept."""
