"""Streams of items in a system of processes: over the SDK, SSE and gRPC; cancelled, late, and with a lost worker."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from harness.http_calls import send_http
from harness.model_folders import a_folder, a_python_model
from harness.running_services import RunningServices
from harness.waiting import until
from horologe import AsyncClient, Client
from horologe_common.status import InvalidInput, Late, Lost, ModelFailed, Refused

if TYPE_CHECKING:
    from collections.abc import Iterator

COUNTER = """
import time
import numpy as np

class Model:
    def __init__(self):
        self.open = self.made = 0

    def predict_stream(self, inputs):
        count, pause_ms, slow_at = map(int, inputs["plan"])
        self.open += 1
        self.made = 0
        try:
            for number in range(count):
                time.sleep((500 if number == slow_at else pause_ms) / 1000)
                if pause_ms == 3 and number == 2:
                    raise ValueError("three")
                yield {"number": np.array([number, self.open, self.made])}
                self.made += 1
        finally:
            self.open -= 1
"""
MAX_OPEN = 20
SIGNATURE = f"""
inputs = [{{ name = "plan", datatype = "INT64", shape = [3], warmup = [3, 0, -1] }}]
outputs = [{{ name = "number", datatype = "INT64", shape = [3] }}]
[stream]
first_item = "10s"
gap = "10s"
max_open = {MAX_OPEN}
"""
DOUBLES = """
import numpy as np

async def run(call, inputs):
    for number in range(int(inputs["n"][0])):
        echoed = await call("echo", {"x": np.full((1, 4), number, np.float32)})
        yield {"y": echoed["y"][0] * 2}
"""
EVENS = """
async def run(call, inputs):
    numbers = call.stream("counter", {"plan": inputs["plan"]})
    async for item in numbers:
        if item["number"][0] % 2 == 0:
            yield {"number": item["number"]}
        if item["number"][0] == 30:
            await numbers.aclose()
"""
DOUBLES_TABLE = """
[evens]
slo = "20s"
inputs = [{ name = "plan", datatype = "INT64", shape = [3] }]
outputs = [{ name = "number", datatype = "INT64", shape = [3] }]
stream = {}

[doubles]
slo = "20s"
inputs = [{ name = "n", datatype = "INT64", shape = [1] }]
outputs = [{ name = "y", datatype = "FP32", shape = [4] }]
stream = { gap = "5s" }
"""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServices]:
    folder = tmp_path_factory.mktemp("streams")
    a_folder(folder / "models", "counter", SIGNATURE, model_py=COUNTER)
    a_python_model(folder / "models", name="echo")
    (folder / "models/pipelines").mkdir()
    (folder / "models/pipelines/doubles.py").write_text(DOUBLES)
    (folder / "models/pipelines/evens.py").write_text(EVENS)
    (folder / "models/pipelines/pipeline.toml").write_text(DOUBLES_TABLE)
    with RunningServices(folder, workers=1, grpc="127.0.0.1:0") as running:
        yield running


@pytest.fixture
def client(system: RunningServices) -> Iterator[Client]:
    with Client(system.endpoint) as opened:
        yield opened


def a_plan(count: int, pause_ms: int = 0, slow_at: int = -1) -> Any:
    return np.array([count, pause_ms, slow_at])


def numbers(items: Any) -> list[int]:
    return [int(item[0]) for item in items]


def count_open(client: Any) -> int:
    """Return how many other streams the model keeps open."""
    (item,) = client.stream("counter", a_plan(1))
    return int(item[1]) - 1


def test_items_arrive_in_order_and_the_stream_ends(client: Client) -> None:
    stream = client.stream("counter", a_plan(25))
    assert numbers(stream) == list(range(25))
    assert stream.reply is not None
    assert (stream.reply.model, stream.reply.version) == ("counter", "1")
    assert numbers(client.stream("counter", a_plan(0))) == []


def test_two_asynchronous_streams_advance_beside_each_other(system: RunningServices) -> None:
    async def run() -> list[list[int]]:
        async def read(count: int) -> list[int]:
            return [int(item[0]) async for item in opened.stream("counter", a_plan(count, 1))]

        async with AsyncClient(system.endpoint) as opened:
            return list(await asyncio.gather(read(12), read(3), read(20)))

    assert asyncio.run(run()) == [list(range(12)), list(range(3)), list(range(20))]


def test_a_model_with_streams_has_no_single_answer(client: Client) -> None:
    with pytest.raises(InvalidInput, match="for a stream"):
        client.predict("counter", a_plan(1))


def test_an_exception_of_the_model_ends_the_stream_after_its_items(client: Client) -> None:
    stream = client.stream("counter", a_plan(9, 3))
    assert numbers([next(stream), next(stream)]) == [0, 1]
    with pytest.raises(ModelFailed, match="three"):
        next(stream)


def test_a_missed_gap_ends_the_stream_as_late(client: Client) -> None:
    stream = client.stream("counter", a_plan(9, 0, slow_at=2), gap_ms=200)
    assert numbers([next(stream), next(stream)]) == [0, 1]
    with pytest.raises(Late, match="item 3 of the stream was not there within 200 ms"):
        next(stream)
    until(lambda: count_open(client) == 0)


def test_a_stream_that_cannot_begin_in_time_is_refused(client: Client) -> None:
    with pytest.raises((Refused, Late)):  # LATE if a microsecond is over before the refusal
        list(client.stream("counter", a_plan(9), first_item_ms=0.001))


def test_a_stream_beyond_the_limit_is_refused_with_the_reason(client: Client) -> None:
    opened = [client.stream("counter", a_plan(10_000)) for _ in range(MAX_OPEN)]
    for stream in opened:
        next(iter(stream))
    with pytest.raises(Refused, match=rf"`stream\.max_open` in model\.toml permits: {MAX_OPEN}"):
        list(client.stream("counter", a_plan(1)))
    for stream in opened:
        stream.close()
    until(lambda: count_open(client) == 0)


def test_a_stream_ends_at_its_deadline_as_a_whole(client: Client) -> None:
    stream = client.stream("counter", a_plan(10_000, 1), slo_ms=300)
    with pytest.raises(Late, match="the stream"):
        list(stream)
    until(lambda: count_open(client) == 0)


def test_cancelled_streams_leave_nothing_open(client: Client) -> None:
    for _ in range(15):
        with client.stream("counter", a_plan(10_000)) as stream:
            next(stream)
    until(lambda: count_open(client) == 0)


def test_the_model_waits_for_a_reader_that_takes_no_items(client: Client) -> None:
    stream = client.stream("counter", a_plan(1000))
    next(stream)
    with client.stream("counter", a_plan(3, 40)) as other:  # time in which the first could make many items
        assert numbers(other) == [0, 1, 2]
    made = [int(next(stream)[0]) for _ in range(7)]
    assert made == list(range(1, 8))  # the window
    stream.close()


def post(system: RunningServices, operation: str, **fields: Any) -> tuple[int, list[Any]]:
    """Return the status, and the events or the JSON of the response."""
    url = f"{system.topology.http}/v2/models/counter/{operation}"
    status, body = send_http("POST", url, json.dumps(fields).encode(), timeout_s=30)
    return status, [json.loads(line.removeprefix(b"data: ")) for line in body.splitlines() if line]


def test_streams_over_http(system: RunningServices) -> None:
    status, events = post(system, "generate_stream", plan=[3, 0, -1], id="mine", gap_ms=5000)
    assert (status, [event["number"][0] for event in events]) == (200, [0, 1, 2])
    assert events[0]["id"] == "mine"
    _, events = post(system, "generate_stream", plan=[9, 0, 1], gap_ms=200)
    assert [event.get("status") for event in events] == [None, "LATE"]
    status, (answer,) = post(system, "generate", plan=[1, 0, -1])
    assert (status, answer["number"][0]) == (200, 0)
    assert post(system, "generate", plan=[3, 0, -1])[0] == 400
    assert post(system, "generate_stream", plan=[3, 0, -1], other=1)[0] == 400


def test_streams_over_grpc_with_tritons_client(system: RunningServices) -> None:
    grpc_client = pytest.importorskip("tritonclient.grpc")
    results: list[Any] = []
    with grpc_client.InferenceServerClient(system.topology.grpc) as triton:
        triton.start_stream(lambda result, error: results.append(error or result.get_response()))
        for request_id in ("a", "b"):
            tensor = grpc_client.InferInput("plan", [3], "INT64")
            tensor.set_data_from_numpy(a_plan(3, 1))
            triton.async_stream_infer("counter", [tensor], request_id=request_id, enable_empty_final_response=True)
        until(lambda: len(results) == 8)
        triton.stop_stream()
    for request_id in ("a", "b"):
        own = [result for result in results if result.id == request_id]
        assert [len(result.outputs) for result in own] == [1, 1, 1, 0]
        assert [result.parameters["triton_final_response"].bool_param for result in own] == [False] * 3 + [True]


def test_a_pipeline_that_yields(client: Client) -> None:
    assert [int(item[0]) for item in client.stream("doubles", [20])] == [2 * number for number in range(20)]
    with client.stream("doubles", [100]) as stream:
        next(stream)
    assert [int(item[0]) for item in client.stream("doubles", [1])] == [0]


def test_a_pipeline_that_reads_the_stream_of_a_model(client: Client) -> None:
    assert numbers(client.stream("evens", a_plan(19))) == list(range(0, 19, 2))
    assert numbers(client.stream("evens", a_plan(10_000))) == list(range(0, 31, 2))
    with client.stream("evens", a_plan(10_000)) as stream:
        next(stream)
    with pytest.raises(ModelFailed, match="stage counter"):
        list(client.stream("evens", a_plan(9, 3)))
    until(lambda: count_open(client) == 0)


def test_a_stream_whose_worker_dies_is_lost_after_its_items(system: RunningServices, client: Client) -> None:
    stream = client.stream("counter", a_plan(10_000, 5))
    got = [int(next(stream)[0]) for _ in range(20)]
    system.kill("worker-0")
    with pytest.raises(Lost):
        got.extend(int(item[0]) for item in stream)
    assert got == list(range(len(got)))
