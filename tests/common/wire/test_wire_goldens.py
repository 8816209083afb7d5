"""The bytes of every message are fixed: peers of other versions and languages send and expect them."""

from __future__ import annotations

from typing import get_args

import msgpack
import msgspec
import pytest

from horologe_common import wire
from horologe_common.applications import Application
from horologe_common.models import ModelSpec, Profile, TensorSpec
from horologe_common.pipelines import PipelineStage, PipelineStructure
from horologe_common.status import InvalidInput

TENSOR = wire.Tensor("x", "FP32", (1, 4), 16)
SPEC = ModelSpec("m", "1", "onnx", (TensorSpec("x", "FP32", (-1, 4)),), (TensorSpec("y", "INT64", (-1,)),))
ROW_STATUS = wire.RowStatus(7, 1)
APPLICATION = wire.ApplicationState(
    Application(
        "digits", ("m", "n/2"), 50.0, "classes", "y", "exp4", {"eta": 0.5}, "zero_one", 3.0, 0.5, ("o",), False, 10
    ),
    2,
    (wire.ModelStatistics("m", 0.5, False, 3, 1, 2, 4, 0.5),),
    1,
)
GPU = wire.DeviceInfo("GPU-1", "V100", 16, 300.0)
STRUCTURE = PipelineStructure("p", 1000, (PipelineStage("m", "m", (), 1.0, 2.0),), 5)

REMOVED_TAGS = (67, 68, 69, 79)
"""Tags of messages that no longer exist."""

GOLDEN: list[tuple[wire.AnyMessage, str]] = [
    (
        wire.Predict(
            1,
            "m",
            "",
            50_000_000,
            (TENSOR,),
            ("y",),
            "chat",
            "user-1",
            True,
            stream=wire.StreamLimits(5, 6),
            waited_ns=7,
        ),
        "dc00100101a16da0ce02faf0809194a178a4465033329201041091a179a463686174a6757365722d31c300a0a0a092050607",
    ),
    (
        wire.Answer(
            1, 0, (TENSOR,), "", 0, "m", "1", 10, 20, 4, True, 0.75, ("m",), ("n",), True, b"\x01\x02", True, ("c4",)
        ),
        (
            "dc00160201009194a178a44650333292010410a000a16da1310a1404c3cb3fe800000000000091a16d91a16ec3c4020102c3"
            "91a26334c20000"
        ),
    ),
    (wire.ItemsTaken(7, 3), "93090703"),
    (wire.Cancel((1, 2)), "9203920102"),
    (wire.ModelInfo(3, "m", "chat"), "940403a16da463686174"),
    (
        wire.Models(3, (wire.ModelState(SPEC, "READY", "", 0.25),), 0, "", 5, "why"),
        (
            "9705039194dc001da16da131a46f6e6e789193a178a44650333292ff049193a179a5494e54363491ff9101c30000a0c200c2"
            "0000c290c290cb3ff0000000000000cb0000000000000000c20000909090c200a55245414459a0cb3fd000000000000000a005"
            "a3776879"
        ),
    ),
    (wire.Admit(4, "m", "1", True, "canary", 0.5), "970604a16da131c3a663616e617279cb3fe0000000000000"),
    (wire.Describe(5, "m/1"), "930705a36d2f31"),
    (
        wire.Description(
            5,
            (wire.ShareState("worker/0", 0, "cpu", 8, 7, ("m/1",), 1, 1000, {1: 5}, 9, "v100", ("m/1",), 40.0, GPU),),
            "edf",
            2,
            "why",
        ),
        "970805919ea8776f726b65722f3000a3637075080791a36d2f3101cd03e881010509a47631303091a36d2f31cb404400000000000094a54750552d31a45631303010cb4072c00000000000a365646602a3776879a0",
    ),
    (
        wire.Hello(1, ("worker/0#a",), "boot", "ipc://e", ("worker",)),
        "970a0191aa776f726b65722f302361a4626f6f74a76970633a2f2f6591a6776f726b6572ce10000000",
    ),
    (wire.Welcome(1, ("controller/0#b",), "boot", ()), "960b0191ae636f6e74726f6c6c65722f302362a4626f6f7490ce10000000"),
    (wire.Directory(("ipc://e",)), "920c91a76970633a2f2f65"),
    (wire.Rejected(12, "protocol"), "930d0ca870726f746f636f6c"),
    (
        wire.Query(6, "m", 1000, 1, b"\x01\x02", True, 7, 96, "chat", "user-1", True, "00-1", "ann"),
        "9f1406a16dcd03e801c4020102c30760a463686174a6757365722d31c3a430302d31a3616e6ec0",
    ),
    (wire.Release((6, 7)), "9215920607"),
    (
        wire.Submit(8, "m/1", 1000, 1, "frontend/0#c", 6, False, 7, 96, "chat", True, "00-1", 9, "ann"),
        "dc00101e08a36d2f31cd03e801ac66726f6e74656e642f30236306c20760a463686174c3a430302d3109a3616e6ec0",
    ),
    (wire.Outcome(8, 5, "late", 9, 7, 6), "971f0805a46c617465090706"),
    (wire.RefusedAgain((("m/1", 3),)), "92229192a36d2f3103"),
    (wire.Dispatch(10, "worker/0#a", (6,)), "94280aaa776f726b65722f3023619106"),
    (
        wire.Ship(10, "frontend/0#c", (wire.Shipped(6, (TENSOR,)),), (7,)),
        "95290aac66726f6e74656e642f3023639192069194a178a446503332920104109107",
    ),
    (
        wire.Outputs(10, (ROW_STATUS,), (TENSOR,), "m/1", 4, 100, 200, "c4", 1.5),
        "9b2a0a9195070100a0c29194a178a44650333292010410a36d2f310464ccc8a26334cb3ff800000000000000",
    ),
    (
        wire.Infer(10, 0, "m/1", 4, (wire.Row(0, 6, 1, 8, 1),), ("frontend/0#c", "selector/0#d"), 100, 200, 50, 1.5),
        (
            "9b320a00a36d2f310491970006010801000092ac66726f6e74656e642f302363ac73656c6563746f722f30236464ccc832cb"
            "3ff8000000000000"
        ),
    ),
    (wire.Load(11, 0, "m/1", 100, 200, 50, 3), "98330b00a36d2f3164ccc83203"),
    (wire.Unload(12, 0, "m/1", 3), "95340c00a36d2f3103"),
    (wire.Result(10, 0, 100, 200, 90, 95, (ROW_STATUS,), "", (97, 201)), "9a350a0064ccc85a5f9195070100a0c2a09261ccc9"),
    (wire.Ping(100), "923664"),
    (wire.Pong(100, 101, 102), "9437646566"),
    (
        wire.Register(
            (wire.Share(0, "cpu", 8, ("m/1",), (("n/1", 11),), "v100", 40.0),),
            (wire.ModelReport(SPEC, Profile({1: 5}, 9), "", "measuring", "", True),),
            (10,),
            3,
            (3,),
            GPU,
        ),
        (
            "9738919700a36370750891a36d2f319192a36e2f310ba476313030cb40440000000000009196dc001da16da131a46f6e6e78"
            "9193a178a44650333292ff049193a179a5494e54363491ff9101c30000a0c200c20000c290c290cb3ff0000000000000cb00"
            "00000000000000c20000909090c2009381010509c3a0a96d6561737572696e67a0c3910a03910394a54750552d31a456313030"
            "10cb4072c00000000000"
        ),
    ),
    (wire.Scan("m", 3), "9339a16d03"),
    (wire.Settle(3, ("m/1",), ("m/2",)), "94200391a36d2f3191a36d2f32"),
    (wire.Settled(3), "922103"),
    (wire.Drain(), "913a"),
    (wire.Sample("m/1", (TENSOR,), 1, 96, "chat"), "963ca36d2f319194a178a446503332920104100160a463686174"),
    (
        wire.Distributions(
            "m/1",
            100,
            1.5,
            (wire.DurationHistogram("chat", 96, (100, 200, 400), (3, 1)),),
            True,
            ((1, 1.0), (4, 2.5)),
            "c4",
        ),
        "983da36d2f3164cb3ff80000000000009194a463686174609364ccc8cd0190920301c3929201cb3ff00000000000009204cb4004000000000000a26334",
    ),
    (
        wire.Applications(12, (APPLICATION,), 0, "", 4),
        "96170c91958ca46e616d65a6646967697473a66d6f64656c7392a16da36e2f32a6736c6f5f6d73cb4049000000000000a66f7574707574a179a6706f6c696379a465787034a873657474696e677381a3657461cb3fe0000000000000a46c6f7373a87a65726f5f6f6e65a764656661756c74cb4008000000000000aa636f6e666964656e6365cb3fe0000000000000a7736861646f777391a16fa56361636865c2a8636f6e74657874730a029198a16dcb3fe0000000000000c203010204cb3fe000000000000001a000a004",
    ),
    (wire.ApplicationInfo(13, "digits", "user-1"), "94180da6646967697473a6757365722d31"),
    (
        wire.Declare(14, APPLICATION.application),
        "93190e8ca46e616d65a6646967697473a66d6f64656c7392a16da36e2f32a6736c6f5f6d73cb4049000000000000a66f7574707574a179a6706f6c696379a465787034a873657474696e677381a3657461cb3fe0000000000000a46c6f7373a87a65726f5f6f6e65a764656661756c74cb4008000000000000aa636f6e666964656e6365cb3fe0000000000000a7736861646f777391a16fa56361636865c2a8636f6e74657874730a",
    ),
    (wire.Withdraw(15, "digits"), "931a0fa6646967697473"),
    (wire.Rollback(16, "digits"), "931b10a6646967697473"),
    (
        wire.Feedback(
            17,
            "digits",
            (wire.Observation((3.0,), b"\x01\x02", "user-1", (TENSOR,), wire.Query(6, "", 1000, 1, b"\x01")),),
        ),
        (
            "941c11a6646967697473919591cb4008000000000000c4020102a6757365722d319194a178a446503332920104109f1406a0"
            "cd03e801c40101c20000a0a0c2a0a0c0"
        ),
    ),
    (wire.Acknowledged(17, (0, 5), "full", 9), "951d11920005a466756c6c09"),
    (
        wire.Events(
            3,
            100_000_000,
            10_000_000,
            (wire.ModelEvents("m/1", ((1, 4), (0, 2)), 5, 1, ((-9, 4), (3, 1))),),
            (wire.DeviceState("worker/0#a", 0, "v100", ("m/1",), ("m/1",), 40.0, "GPU-1"),),
            7,
            (wire.PipelineArrivals("p", ((0, 3),)),),
        ),
        "983e03ce05f5e100ce009896809196a36d2f319292010492000205019292f704920301009197aa776f726b65722f30236100a47631303091a36d2f3191a36d2f31cb4044000000000000a54750552d31079192a17091920003",
    ),
    (wire.QueriesArrived((("p", 3),)), "92429192a17003"),
    (
        wire.ResourcePlan(7, (wire.PlannedModel("m", 2, 8, "v100", ("gpu-a",), {8: 5}, ("gpu-b",), 20),)),
        "933f079198a16d0208a47631303091a56770752d6181080591a56770752d6214",
    ),
    (wire.Tune(18, "apply", b"{}", True), "954012a56170706c79c4027b7dc3"),
    (wire.Tuning(18, b"{}", 2, "why"), "954112c4027b7d02a3776879"),
    (wire.Watch(7, 3, 300), "94500703cd012c"),
    (
        wire.Activity(
            7,
            9,
            5_000_000_000,
            (wire.ActionRecord("infer", "worker/0", 0, "m/1", 4, 3, 10, 20, 11, 22, 0, 1),),
            (wire.RefusalRecord(50, "m/1", "expired", 2, 7),),
            (wire.ShareActivity("worker/0", 0, 2, 11),),
            4,
            7,
            "why",
        ),
        (
            "9a510709cf000000012a05f200919ca5696e666572a8776f726b65722f3000a36d2f3104030a140b160001919532a36d2f31a7657870"
            "6972656402079194a8776f726b65722f3000020b0407a3776879"
        ),
    ),
    (wire.StartDriver("p", "/p.py", 256, 8_000_000, 1024), "9746a170a52f702e7079cd0100ce007a1200cd0400ce10000000"),
    (wire.DriverReady("why"), "9247a3776879"),
    (wire.StartRun(7, 50_000_000, (TENSOR,)), "944807ce02faf0809194a178a44650333292010410"),
    (wire.ModelCall(7, 2, "m", 12, (1,), (TENSOR,)), "98490702a16d0c91019194a178a44650333292010410c2"),
    (wire.CallDone(7, 2, 0, "", (TENSOR,)), "974a070200a09194a178a44650333292010410c2"),
    (wire.EndRun(7), "924b07"),
    (wire.RunDone(7, 8, "why", (TENSOR,)), "954c0708a37768799194a178a44650333292010410"),
    (wire.CallTaken(7, 2, 3), "9453070203"),
    (wire.RunItem(7, (TENSOR,)), "9352079194a178a44650333292010410"),
    (wire.EndStreams(1, "m/1", (7, 8)), "942b01a36d2f31920708"),
    (wire.PipelineInfo(3, "p"), "934d03a170"),
    (
        wire.PipelineState(3, 0, "", STRUCTURE, (wire.StageState("m", 5, 1, 2, 3, 4),), 5, 10, 20, (("LATE", 1),)),
        (
            "9a4e0300a084a46e616d65a170a6736c6f5f6e73cd03e8a67374616765739185a46e616d65a16da56d6f64656ca16da77061"
            "72656e747390a6766973697473cb3ff0000000000000a766616e5f6f7574cb4000000000000000a771756572696573059196"
            "a16d0501020304050a149192a44c41544501"
        ),
    ),
]
"""One of each message with every field set. Lines only grow, at the end: any other change breaks deployed peers."""


@pytest.mark.parametrize(("message", "golden"), GOLDEN, ids=lambda value: type(value).__name__)
def test_the_bytes_of_every_message_stay_as_they_are(message: wire.AnyMessage, golden: str) -> None:
    assert msgspec.msgpack.encode(message).hex() == golden
    assert msgspec.msgpack.decode(bytes.fromhex(golden), type=wire.AnyMessage) == message


def test_every_message_has_golden_bytes_and_a_tag_of_its_own() -> None:
    kinds = get_args(wire.AnyMessage)
    assert {type(message) for message, _ in GOLDEN} == set(kinds)
    tags = [kind.__struct_config__.tag for kind in kinds]
    assert len(set(tags)) == len(tags)


@pytest.mark.parametrize("tag", REMOVED_TAGS)
def test_the_tag_of_a_removed_message_is_not_used_again(tag: int) -> None:
    with pytest.raises(InvalidInput, match="Invalid value"):
        wire.decode(msgpack.packb([["controller/0#1", "tuner/0#1", [[tag, ["m/1"], [], ""]]]]))


@pytest.mark.parametrize(("message", "golden"), GOLDEN, ids=lambda value: type(value).__name__)
def test_a_newer_peer_may_append_fields(message: wire.AnyMessage, golden: str) -> None:
    longer = msgpack.packb([*msgpack.unpackb(bytes.fromhex(golden), strict_map_key=False), "new", [1]])
    assert msgspec.msgpack.decode(longer, type=wire.AnyMessage) == message


@pytest.mark.parametrize(("message", "golden"), GOLDEN, ids=lambda value: type(value).__name__)
def test_an_older_peer_may_leave_out_what_has_a_default(message: wire.AnyMessage, golden: str) -> None:
    fields = msgspec.structs.fields(type(message))
    required = sum(field.required for field in fields)
    shorter = msgpack.packb(msgpack.unpackb(bytes.fromhex(golden), strict_map_key=False)[: 1 + required])
    decoded = msgspec.msgpack.decode(shorter, type=wire.AnyMessage)
    assert type(decoded) is type(message)
    assert all(field.required for field in fields[:required]), "fields without a default come first"
