"""Settings of the profiler."""

import msgspec

from horologe_common.clock import ms, s


class ProfilerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is learned of execution times, from how much, and at which price."""

    name: str = "0"
    """There is one profiler."""
    state: str = ".cache/horologe"
    """Folder for what has been learned; empty: it is forgotten at a restart."""
    busy_share: float = 0.05
    """Part of one device's time that runs of samples may take, on average."""
    busy_burst_ns: int = s(1)
    """Of a device's time, so much at once where nothing was run before: at first all is unknown."""
    in_flight: int = 2
    """Runs under way at once, at most one of each model."""
    budget_ns: int = s(10)
    """A run that does not come to its turn by then is given up."""
    longest_ns: int = ms(100)
    """Larger batches than one row are tried while they are expected to take at most this."""
    enough: int = 20
    """Until so many rows of a model, an application and a range of lengths were run, each sample is taken."""
    steady_ns: int = s(10)
    """From then on, one of them this often."""
    batches_ns: int = s(60)
    """How often a row of a model is also run repeated, in batches, to learn what does not grow with the batch."""
    window: int = 128
    """Times remembered of each model, application and range of lengths."""
    window_ns: int = s(1800)
    """Older ones are forgotten, but for the last five."""
    keys_max: int = 1024
    """Models x applications x ranges of lengths; beyond, what was sampled the longest ago is forgotten."""
    staging_bytes: int = 64 << 20
    """Inputs of samples that wait; more are dropped."""
    publish_ns: int = s(2)
    """What has changed is told the controller, and kept in `state`, this often at most."""
