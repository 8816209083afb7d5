"""Settings of the profiler: the table `[profiler]`."""

from typing import Annotated

import msgspec
from msgspec import Meta

from horologe_common.clock import ms, s
from horologe_common.setting_ranges import NAME_PATTERN


class ProfilerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which execution times are measured, and how much device time that may take."""

    name: Annotated[str, Meta(pattern=NAME_PATTERN)] = "0"
    """Instance name. A cluster has one profiler."""
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
    in_flight: int = 2
    """Maximum number of runs in flight; at most one of each model."""
    budget_ns: int = s(10)
    """Deadline of a run, relative to its submission. Later it is given up."""
    batch_time_max_ns: Annotated[int, Meta(ge=0)] = ms(100)
    """Maximum expected time of a batch of more than one row that the profiler runs."""
    initial_runs: Annotated[int, Meta(ge=0)] = 20
    """Number of times below which every sample of a model, application and range of lengths runs."""
    rerun_interval_ns: int = s(10)
    """After `initial_runs`, interval between two runs of the same model, application and range of lengths."""
    batch_interval_ns: int = s(60)
    """Interval at which a row of a model also runs repeated, in batches, to measure c0 (ORLOJ, eq. 3)."""
    comparison_interval_ns: Annotated[int, Meta(ge=0)] = s(60)
    """Interval at which rows of a model are compared with each other, to find out whether it is dynamic. 0: every model
    is static."""
    window: Annotated[int, Meta(ge=5, le=1_000_000)] = 128
    """Maximum number of times kept of each model, application and range of lengths."""
    window_ns: int = s(1800)
    """Maximum age of a time. The newest five are kept at any age."""
    keys_max: int = 1024
    """Maximum number of (model, application, range of lengths) keys. Beyond it the least recently sampled is dropped.
    """
    staging_bytes: int = 64 << 20
    """Maximum bytes of the inputs of queued samples. Samples beyond it are dropped."""
    publish_interval_ns: int = s(2)
    """Minimum interval between two publications to the controller and writes of the state file."""
