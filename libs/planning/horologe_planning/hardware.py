"""Hardware types, and the price of one replica on each: the table `[hardware]` (cost model of InferLine section 6)."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from horologe_planning.plan import Placement


PRICE_ROUNDING = 1e-9
"""Prices that differ by less are equal: the difference is rounding."""


class HardwareType(msgspec.Struct, frozen=True):
    """A kind of device that runs one replica of a model. `price_per_hour` is in US dollars."""

    name: str
    price_per_hour: float


def accelerator_price(with_accelerators: float, without: float, accelerators: int) -> float:
    """Return the hourly price of one accelerator of an instance (InferLine section 6).

    This is the difference between the prices of the instance and of an equal one without accelerators, divided by
    their number.
    """
    return (with_accelerators - without) / accelerators


def price_of(placements: Iterable[Placement], hardware: Mapping[str, HardwareType]) -> float:
    """Return the dollars per hour of all replicas of placements on whole devices."""
    return sum(placed.replicas * hardware[placed.hardware].price_per_hour for placed in placements)


DEFAULT_PRICES = (
    f"v100={accelerator_price(3.06, 0.532, 1):g}",
    f"k80={accelerator_price(7.20, 2.128, 8):g}",
    f"cpu={3.20 / 64:g}",
)
"""Amazon EC2 on demand, Linux, us-east-1, at the time of the paper. V100: p3.2xlarge and r4.2xlarge, both 8 vCPUs and
61 GiB. K80: p2.8xlarge and r4.8xlarge, both 32 vCPUs; no instance has the 488 GiB of the former without GPUs. CPU: one
vCPU of m4.16xlarge."""


def parse_prices(texts: Iterable[str]) -> dict[str, HardwareType]:
    """Return the hardware types by name, from texts like "v100=2.5" (US dollars per hour).

    Raises ValueError for a text without a name or a price, a name given twice, and a price that is not positive.
    """
    types: dict[str, HardwareType] = {}
    for text in texts:
        name, equals, number = (part.strip() for part in text.partition("="))
        try:
            price = float(number)
        except ValueError:
            price = 0.0
        if not (name and equals and price > 0 and isfinite(price)):
            raise ValueError(f"hardware.prices: got {text!r}, wanted NAME=PRICE with dollars per hour above 0")
        if name in types:
            raise ValueError(f"hardware.prices: got {name!r} twice, wanted each once")
        types[name] = HardwareType(name, price)
    return types


class HardwareSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hardware types that `horologe plan make` may choose, and what a replica on each costs."""

    prices: tuple[str, ...] = DEFAULT_PRICES
    """Dollars per hour of one replica by hardware type, as `v100=2.5`. A GPU costs the difference between an instance
    with and without it, divided by its number of GPUs (InferLine section 6). The defaults are the prices of Amazon EC2
    at the time of the paper."""
