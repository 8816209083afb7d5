"""Documents of plans: they are read as they were written, and errors name the plan, the stage and the field."""

from __future__ import annotations

import msgspec
import pytest

from horologe_common.clock import ms, s
from horologe_planning.envelope import TrafficEnvelope
from horologe_planning.plan import Placement, Plan, ProvisioningLevel, encode_plans, parse_plans

ENVELOPE = TrafficEnvelope((ms(100), s(1), s(60)), (30, 180, 6600))
FRONT = Placement("front", "classify", "cpu", 1, 10, throughput=20.0)
BACK = Placement("back", "identify", "gpu", 8, 2, throughput=25.0, scale_factor=0.2)
LEVELS = (ProvisioningLevel(0.5, (5, 1)), ProvisioningLevel(1.0, (10, 2)))
PLAN = Plan("video", ms(300), 100.0, (FRONT, BACK), ENVELOPE, LEVELS)


def on_share(name: str, percent: float) -> Plan:
    share = Placement(name, name, "v100", 4, percent=percent, device="v100-1", slo_ns=ms(20), latency_ns=ms(8))
    return Plan(name, ms(20), 400.0, (share,))


W1, W5 = on_share("w1", 20), on_share("w5", 50)


def test_plans_are_read_as_they_were_written() -> None:
    assert parse_plans(encode_plans((PLAN, W1, W5))) == (PLAN, W1, W5)


@pytest.mark.parametrize(
    "document", [b"", b"{", b"{}", b"[1]", b'{"version": 1, "plans": 7}', b'{"gpus": []}', b"\xff"]
)
def test_a_document_of_something_else_is_an_error(document: bytes) -> None:
    with pytest.raises(ValueError, match=r"plan: .*`horologe plan make --json` writes version 1"):
        parse_plans(document)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": ""}, "name: got ''"),
        ({"slo_ns": 0}, "slo_ns: got 0"),
        ({"rate": -1.0}, r"rate: got -1\.0"),
        ({"placements": ()}, "placements: got 0"),
        ({"placements": (FRONT, FRONT)}, "wanted one without a device for each"),
        ({"entry": "side"}, "entry: got 'side', wanted one of front, back"),
        ({"envelope": None}, "envelope: got none, wanted that of the sample"),
        ({"envelope": TrafficEnvelope((), ())}, "envelope: got 0 windows"),
        ({"envelope": TrafficEnvelope((s(1),), (1, 2))}, "envelope: got 1 windows and 2 counts"),
        ({"envelope": TrafficEnvelope((s(2), s(1)), (1, 2))}, "windows_ns"),
        ({"envelope": TrafficEnvelope((0, s(1)), (1, 2))}, "windows_ns"),
        ({"envelope": TrafficEnvelope((s(1), s(2)), (2, 1))}, "counts"),
        ({"envelope": TrafficEnvelope((s(1), s(2)), (0, 1))}, "counts"),
        ({"levels": (ProvisioningLevel(1.0, (1, 1)), ProvisioningLevel(1.0, (2, 1)))}, "levels.factor"),
        ({"levels": (ProvisioningLevel(-1.0, (1, 1)),)}, "levels.factor"),
        ({"levels": (ProvisioningLevel(float("nan"), (1, 1)),)}, "levels.factor"),
        ({"levels": (ProvisioningLevel(1.0, (1,)),)}, "levels.replicas"),
        ({"levels": (ProvisioningLevel(1.0, (1, 0)),)}, "levels.replicas"),
    ],
)
def test_an_invalid_plan_names_the_field(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        msgspec.structs.replace(PLAN, **change).validate()


@pytest.mark.parametrize(
    ("plan", "change", "message"),
    [
        (PLAN, {"replicas": 0}, "stage 'front': replicas: got 0"),
        (PLAN, {"max_batch": 0}, "stage 'front': max_batch: got 0"),
        (PLAN, {"throughput": 0.0}, "stage 'front': throughput: got 0"),
        (PLAN, {"scale_factor": 0.0}, "stage 'front': scale_factor: got 0"),
        (PLAN, {"model": ""}, "stage 'front': model: got ''"),
        (W1, {"percent": 60.0}, "device 'v100-1': percent: got 110 in all, wanted at most 100"),
        (W1, {"percent": 0.0}, "plan 'w1': stage 'w1': percent: got 0, wanted"),
        (W1, {"device": ""}, "stage 'w1': device: got none, wanted one for a share of 20%"),
        (W1, {"scale_factor": -1.0}, "stage 'w1': scale_factor: got -1"),
        (W1, {"model": "w5"}, "plan 'w5': model: got 'w5', which plan 'w1' has"),
        (W1, {"exec_ns": ((5, 1),)}, "stage 'w1': exec_ns: got 1 for a batch of 5"),
    ],
)
def test_an_invalid_placement_names_stage_and_field(plan: Plan, change: dict[str, object], message: str) -> None:
    placements = (msgspec.structs.replace(plan.placements[0], **change), *plan.placements[1:])
    with pytest.raises(ValueError, match=message):
        parse_plans(encode_plans((msgspec.structs.replace(plan, placements=placements), W5)))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b'{"version": 2, "plans": []}', "version: got 2, wanted 1"),
        (b'{"version": 1, "plans": []}', "plans: got 0, wanted 1 to"),
        (encode_plans((W1, W1)), "plan 'w1': name: got it twice"),
    ],
)
def test_an_invalid_document_names_the_field(document: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_plans(document)
