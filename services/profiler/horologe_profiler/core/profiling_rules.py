"""Rules by which the profiler measures: numbers of runs, intervals and limits. Tests use others."""

import msgspec

from horologe_common.clock import ms, s


class ProfilingRules(msgspec.Struct, frozen=True):
    """Numbers of runs, intervals and limits of the profiler."""

    in_flight: int = 2
    """Maximum number of runs in flight; at most one of each model."""
    budget_ns: int = s(10)
    """Deadline of a run, relative to its submission. Later it is given up."""
    batch_time_max_ns: int = ms(100)
    """Maximum expected time of a batch of more than one row that the profiler runs."""
    initial_runs: int = 20
    """Number of times below which every sample of a model, application and range of lengths runs."""
    rerun_interval_ns: int = s(10)
    """After `initial_runs`, interval between two runs of the same model, application and range of lengths."""
    batch_interval_ns: int = s(60)
    """Interval at which a row of a model also runs repeated, in batches, to measure c0 (ORLOJ, eq. 3)."""
    comparison_interval_ns: int = s(60)
    """Interval at which rows of a model are compared with each other, to find out whether it is dynamic. 0: every model
    is static."""
    window: int = 128
    """Maximum number of times kept of each model, application and range of lengths."""
    window_ns: int = s(1800)
    """Maximum age of a time. The newest five are kept at any age."""
    keys_max: int = 1024
    """Maximum number of (model, application, range of lengths) keys. Beyond it the least recently sampled is dropped.
    """
    publish_interval_ns: int = s(2)
    """Minimum interval between two publications to the controller and writes of the state file."""
