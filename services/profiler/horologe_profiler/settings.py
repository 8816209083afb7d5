"""Settings of the profiler: the table `[profiler]`."""

from typing import Annotated

import msgspec
from msgspec import Meta

from horologe_common.clock import ms, s


class ProfilerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which execution times are measured, and how much device time that may take."""

    state: str = ".cache/horologe"
    """Folder of the state file. Empty: measurements are lost at a restart."""
    busy_share: Annotated[float, Meta(ge=0, le=1)] = 0.05
    """Share of one device's time that profiling runs may use. After a run they pause until it has used up its share."""
    initial_time_ns: Annotated[int, Meta(ge=0)] = s(4)
    """Device time of the first runs, which `busy_share` does not limit. They end when the inputs of the model have been
    compared: until then it counts as static. A model of 60 ms uses 2 s, or 0.7 s if requests have lengths."""
    first_wait_ns: Annotated[int, Meta(ge=0)] = ms(50)
    """Time after which such a first run goes before users' requests. Other runs wait until there are none: where
    requests that take different times count as alike, that can take seconds."""
    staging_bytes: int = 64 << 20
    """Maximum bytes of the inputs of queued samples. Samples beyond it are dropped."""
