"""Calls of a client of KServe: `python kserve_calls.py rest|grpc ADDRESS`."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput

from system.clients.client_calls import Calls

ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)
WORDS = np.array(["cat", "d\xf6g"], object)


def a_request(model: str, values: Any, datatype: str, is_binary: bool, **fields: Any) -> InferRequest:
    tensor = InferInput("x", list(values.shape), datatype)
    tensor.set_data_from_numpy(values, binary_data=is_binary)
    outputs = [RequestedOutput("y", {"binary_data": True})] if is_binary else None
    return InferRequest(model, [tensor], request_outputs=outputs, **fields)


def is_answer(result: Any, wanted: Any) -> bool:
    values = result.outputs[0].as_numpy()
    texts = [item.decode() if isinstance(item, bytes) else item for item in values.reshape(-1).tolist()]
    return bool(texts == wanted.reshape(-1).tolist())


async def run(client: Any, where: tuple[str, ...]) -> list[str]:
    """Make the calls that both clients have. `where`: their first argument over HTTP."""
    calls = Calls("kserve")
    await calls.passes("is_server_live()", lambda: client.is_server_live(*where), bool)
    await calls.passes("is_server_ready()", lambda: client.is_server_ready(*where), bool)
    await calls.passes("is_model_ready()", lambda: client.is_model_ready(*where, model_name="echo"), bool)
    for model, values, datatype in (("echo", ROWS, "FP32"), ("text", WORDS, "BYTES"), ("half", ROWS, "FP16")):
        for is_binary in (False, True):
            if datatype == "FP16" and not is_binary:
                continue  # it has no JSON form
            array = values.astype(np.float16) if datatype == "FP16" else values
            request = a_request(model, array, datatype, is_binary, parameters={"slo_ms": 5000}, request_id="mine")
            keys: Any = {"model_name": model} if where else {}
            await calls.passes(
                f"infer(), {datatype}, binary_data={is_binary}",
                lambda request=request, keys=keys: client.infer(*where, request, **keys),  # type: ignore[misc]
                lambda result, wanted=array: is_answer(result, wanted) and result.id == "mine",  # type: ignore[misc]
            )
    await calls.passes(
        "infer(timeout=5)",
        lambda: client.infer(
            *where, a_request("echo", ROWS, "FP32", True), timeout=5, **({"model_name": "echo"} if where else {})
        ),
        lambda result: is_answer(result, ROWS),
    )
    if where:
        await calls.passes(
            "infer(is_graph_endpoint=True)",
            lambda: client.infer(
                f"{where[0]}/v2/models/echo/infer", a_request("echo", ROWS, "FP32", False), is_graph_endpoint=True
            ),
            lambda result: result["outputs"][0]["data"] == ROWS.reshape(-1).tolist(),
        )
        old = InferenceRESTClient(RESTConfig(protocol="v1"))
        rows: Any = {"data": {"instances": [[1]]}, "model_name": "echo"}
        await calls.is_refused('infer(), protocol="v1"', lambda: old.infer(*where, **rows))
        await calls.is_refused('explain(), protocol="v1"', lambda: old.explain(*where, **rows))
        await calls.is_refused('is_model_ready(), protocol="v1"', lambda: old.is_model_ready(*where, "echo"))
        await old.close()
    return calls.missing(client, "close")


async def main(kind: str, address: str) -> None:
    is_rest = kind == "rest"
    client = InferenceRESTClient(RESTConfig(protocol="v2")) if is_rest else InferenceGRPCClient(address)
    missing = await run(client, (f"http://{address}",) if is_rest else ())
    await client.close()
    if missing:
        sys.exit(f"no call of {', '.join(missing)}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
