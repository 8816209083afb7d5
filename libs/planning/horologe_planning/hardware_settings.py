"""Prices of hardware types: the table `[hardware]`."""

import msgspec

from horologe_planning.hardware import DEFAULT_PRICES


class HardwareSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hardware types that `horologe plan make` may choose, and what a replica on each costs."""

    prices: tuple[str, ...] = DEFAULT_PRICES
    """Dollars per hour of one replica by hardware type, as `v100=2.5`. A GPU costs the difference between an instance
    with and without it, divided by its number of GPUs (InferLine section 6). The defaults are the prices of Amazon EC2
    at the time of the paper."""
