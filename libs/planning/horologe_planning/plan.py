"""A plan: which models run where, for which traffic and SLO. One JSON document carries plans to a tuner.

A plan is for one pipeline. A model that clients call by itself is a pipeline of one stage. A placement says that a
model runs on so many devices of a hardware type, or on a share of one device that has a name:

    {"version": 1, "plans": [{"name": "resnet", "slo_ns": 50000000, "rate": 400.0, "placements": [
        {"stage": "resnet", "model": "resnet", "hardware": "v100", "max_batch": 8, "percent": 40.0, "device": "v100-1"}
    ]}]}

`horologe plan make --json` writes such a document, `horologe plan apply` sends it.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

import msgspec

from horologe_common.clock import s
from horologe_planning.envelope import TrafficEnvelope

if TYPE_CHECKING:
    from collections.abc import Iterable

PLAN_VERSION: Final = 1
WHOLE_PERCENT = 100.0
ROUNDING = 1e-6
"""Tolerance of a sum of percents: floating-point error."""
MAX_PLANS, MAX_PLACEMENTS, MAX_LEVELS = 4096, 16_384, 1024
MAX_REPLICAS = 10_000
MAX_BATCH = 1 << 20
MAX_TIME_NS = s(86_400)
SMALLEST, LARGEST = 1e-9, 1e12
"""Bounds of rates, factors and throughputs. Products and quotients of a few of them are finite."""
NAME_LIMIT = 512
"""Characters of a name in a plan."""


class Placement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model on `replicas` devices of a hardware type, or on a share of the named `device`.

    Calls of a stage go to all of its placements. Searches leave out the figures below `device`.
    """

    stage: str
    """Stage of the pipeline."""
    model: str
    """Served model, by name or by key `name/version`."""
    hardware: str
    """Hardware type (`worker.hardware`). Empty: any."""
    max_batch: int = 1
    replicas: int = 1
    """Devices, or shares of `percent`. 1 for a named device."""
    percent: float = WHOLE_PERCENT
    """Part of a device that each replica has."""
    device: str = ""
    """Id of the device, on which placements with the same id are neighbours. Empty: any of the type."""
    scale_factor: float = 1.0
    """Mean calls per query that this placement gets (s_m of InferLine). Placements of one stage add up."""
    throughput: float = 0.0
    """Calls per second of one replica at `max_batch`, beside its neighbours (mu_m). 0: not known."""
    slo_ns: int = 0
    """Time that a call of the stage may take, by which the tuner watches a share. 0: it is not watched."""
    latency_ns: int = 0
    """Predicted time of a full batch beside the neighbours. 0: not known."""
    deviation_ns: int = 0
    """Standard deviation of measured times around `latency_ns`."""
    exec_ns: tuple[tuple[int, int], ...] = ()
    """(batch size, predicted time on the device beside the neighbours at their largest batch)."""
    coefficients: str = ""
    """Name of the model's interference coefficients. Empty: `model`."""

    @property
    def is_share(self) -> bool:
        """True if it has a named device, also at 100%: the tuner gives it a standby, and does not count replicas."""
        return bool(self.device)

    def provisioning_ratio(self, rate: float) -> float:
        """Return the paper's rho_m: load at `rate` queries per second as a part of the planned throughput."""
        return rate * self.scale_factor / (self.replicas * self.throughput)

    def describe(self) -> str:
        """Return the placement in one phrase, for tables and reasons."""
        part = "" if self.percent == WHOLE_PERCENT else f" {self.percent:g}%"
        return f"{self.replicas} x {self.hardware}{part}, batch {self.max_batch}"


class ProvisioningLevel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Replicas of each placement that suffice for the sample at `factor` times its rate."""

    factor: float
    replicas: tuple[int, ...]


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Placements of a pipeline's stages, with the SLO and the traffic that they were planned for."""

    name: str
    """Of the pipeline, or of the workload that has one stage."""
    slo_ns: int
    rate: float
    """Mean queries per second of the sample trace (lambda)."""
    placements: tuple[Placement, ...]
    envelope: TrafficEnvelope | None = None
    """Of the sample trace. None: replicas stay as planned."""
    levels: tuple[ProvisioningLevel, ...] = ()
    """Ascending. Empty: replicas follow the provisioning ratios, as in InferLine."""
    entry: str = ""
    """Stage whose calls are counted as arrivals of queries. Empty: that of the first placement."""
    pooled: bool = False
    """True if the stages of a hardware type share its devices: every device then holds every model of the type, and
    `replicas` of each placement is the number of these devices."""

    @property
    def stages(self) -> tuple[str, ...]:
        """The names of the stages, in the order of their first placements."""
        return tuple(dict.fromkeys(placement.stage for placement in self.placements))

    @property
    def counted(self) -> tuple[Placement, ...]:
        """The placements whose replicas follow the traffic."""
        return tuple(placement for placement in self.placements if not placement.is_share)

    @property
    def shares(self) -> tuple[Placement, ...]:
        """The placements on devices with names."""
        return tuple(placement for placement in self.placements if placement.is_share)

    @property
    def entry_placement(self) -> Placement:
        """A placement of the stage by whose calls queries are counted."""
        return next((placement for placement in self.placements if placement.stage == self.entry), self.placements[0])

    def validate(self) -> None:
        """Raise ValueError that names the first invalid field, its value and what is wanted."""
        _check_name("name", self.name)
        place = f"plan {self.name!r}: "
        if not 1 <= len(self.placements) <= MAX_PLACEMENTS:
            raise ValueError(f"{place}placements: got {len(self.placements)}, wanted 1 to {MAX_PLACEMENTS}")
        if not 0 < self.slo_ns <= MAX_TIME_NS:
            raise ValueError(f"{place}slo_ns: got {self.slo_ns}, wanted nanoseconds from 1 to {MAX_TIME_NS}")
        _check_positive(f"{place}rate", self.rate)
        for placement in self.placements:
            _check_placement(f"{place}stage {placement.stage!r}: ", placement)
        if self.entry and self.entry not in self.stages:
            raise ValueError(f"{place}entry: got {self.entry!r}, wanted one of {', '.join(self.stages)}")
        if self.counted:
            self._check_counted(place)
        self._check_shares(place)
        check_devices((self,))

    def _check_counted(self, place: str) -> None:
        names = [placement.stage for placement in self.counted]
        if len(set(names)) < len(names):
            raise ValueError(f"{place}placements: got stages {names}, wanted one without a device for each")
        if self.envelope is None:
            raise ValueError(f"{place}envelope: got none, wanted that of the sample, which the replicas follow")
        self.envelope.validate()
        for placement in self.counted:
            _check_positive(f"{place}stage {placement.stage!r}: throughput", placement.throughput)
        _check_levels(place, self.levels, len(names))

    def _check_shares(self, place: str) -> None:
        first: dict[str, Placement] = {}
        for share in self.shares:
            known = first.setdefault(share.stage, share)
            for field in ("model", "slo_ns"):
                if (value := getattr(share, field)) != (wanted := getattr(known, field)):
                    wanted = f"{wanted!r}, as the stage has on {known.device!r}"
                    raise ValueError(f"{place}stage {share.stage!r}: {field}: got {value!r}, wanted {wanted}")


class PlanDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of a plan's file. Its plans are applied together, or none of them."""

    version: int
    plans: tuple[Plan, ...]
    report: dict[str, Any] = {}
    """Costs, forecasts and reasons, for people and scripts. A tuner does not read it."""


def parse_plans(document: bytes | str) -> tuple[Plan, ...]:
    """Return the plans of a JSON document. Raises ValueError for one that is not valid."""
    return parse_document(document).plans


def parse_document(document: bytes | str) -> PlanDocument:
    """Return a JSON document with its report. Raises ValueError for one that is not valid."""
    try:
        parsed = msgspec.json.decode(document, type=PlanDocument)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"plan: {error}; `horologe plan make --json` writes version {PLAN_VERSION}") from error
    if parsed.version != PLAN_VERSION:
        raise ValueError(f"version: got {parsed.version}, wanted {PLAN_VERSION}")
    if not 1 <= len(parsed.plans) <= MAX_PLANS:
        raise ValueError(f"plans: got {len(parsed.plans)}, wanted 1 to {MAX_PLANS}")
    names: set[str] = set()
    for plan in parsed.plans:
        plan.validate()
        if plan.name in names:
            raise ValueError(f"plan {plan.name!r}: name: got it twice, wanted a different name for each plan")
        names.add(plan.name)
    check_devices(parsed.plans)
    return parsed


def encode_plans(plans: Iterable[Plan]) -> bytes:
    """Return the JSON document of plans, without a report."""
    return msgspec.json.encode(PlanDocument(PLAN_VERSION, tuple(plans)))


def check_devices(plans: Iterable[Plan]) -> None:
    """Raise ValueError unless each model has one plan, and the shares of each device fit on it, one for each stage."""
    plans = tuple(plans)
    owners: dict[str, str] = {}
    percent: dict[str, float] = {}
    for plan in plans:
        places = [(placement.stage, placement.device) for placement in plan.shares]
        if len(set(places)) < len(places):
            raise ValueError(f"plan {plan.name!r}: placements: got two on a device for one stage, wanted one")
        for placement in plan.shares:
            if (owner := owners.setdefault(placement.model, plan.name)) != plan.name:
                raise ValueError(
                    f"plan {plan.name!r}: model: got {placement.model!r}, which plan {owner!r} has, wanted a model of "
                    "its own: the controller tells plans apart by their models"
                )
            percent[placement.device] = percent.get(placement.device, 0.0) + placement.percent
    for device, total in percent.items():
        if total > WHOLE_PERCENT + ROUNDING:
            raise ValueError(f"device {device!r}: percent: got {total:g} in all, wanted at most 100")


def _check_placement(place: str, placement: Placement) -> None:
    _check_name(f"{place}stage", placement.stage)
    _check_name(f"{place}model", placement.model)
    for field in ("hardware", "device", "coefficients"):
        if len(text := getattr(placement, field)) > NAME_LIMIT:
            raise ValueError(f"{place}{field}: got {len(text)} characters, wanted at most {NAME_LIMIT}")
    most_replicas = 1 if placement.is_share else MAX_REPLICAS
    for field, least, most in (
        ("replicas", 1, most_replicas),
        ("max_batch", 1, MAX_BATCH),
        ("slo_ns", 0, MAX_TIME_NS),
        ("latency_ns", 0, MAX_TIME_NS),
        ("deviation_ns", 0, MAX_TIME_NS),
        ("throughput", 0.0, LARGEST),
    ):
        if not least <= (value := getattr(placement, field)) <= most:
            raise ValueError(f"{place}{field}: got {value:g}, wanted {least:g} to {most:g}")
    _check_positive(f"{place}scale_factor", placement.scale_factor)
    if not 0 < placement.percent <= WHOLE_PERCENT:
        raise ValueError(f"{place}percent: got {placement.percent:g}, wanted a number above 0 of at most 100")
    if placement.percent < WHOLE_PERCENT and not placement.is_share:
        raise ValueError(f"{place}device: got none, wanted one for a share of {placement.percent:g}%")
    for size, time_ns in placement.exec_ns:
        if not (1 <= size <= placement.max_batch and 0 < time_ns <= MAX_TIME_NS):
            wanted = f"times of 1 to {MAX_TIME_NS} ns for batches of 1 to {placement.max_batch}"
            raise ValueError(f"{place}exec_ns: got {time_ns} for a batch of {size}, wanted {wanted}")


def _check_name(field: str, name: str) -> None:
    if not 1 <= len(name) <= NAME_LIMIT or not name.isprintable():
        raise ValueError(f"{field}: got {name[:NAME_LIMIT]!r}, wanted 1 to {NAME_LIMIT} printable characters")


def _check_positive(field: str, value: float) -> None:
    if not SMALLEST <= value <= LARGEST:
        raise ValueError(f"{field}: got {value}, wanted a positive number from {SMALLEST:g} to {LARGEST:g}")


def _check_levels(place: str, levels: tuple[ProvisioningLevel, ...], placements: int) -> None:
    if len(levels) > MAX_LEVELS:
        raise ValueError(f"{place}levels: got {len(levels)}, wanted at most {MAX_LEVELS}")
    factors, counts = [level.factor for level in levels], [n for level in levels for n in level.replicas]
    if not all(low < high <= LARGEST for low, high in itertools.pairwise([SMALLEST, *factors])):
        raise ValueError(f"{place}levels.factor: got {factors}, wanted positive numbers up to {LARGEST:g} that ascend")
    if any(len(level.replicas) != placements for level in levels) or not all(1 <= n <= MAX_REPLICAS for n in counts):
        wanted = f"{placements} of 1 to {MAX_REPLICAS} in each level"
        raise ValueError(f"{place}levels.replicas: got {counts}, wanted {wanted}")
