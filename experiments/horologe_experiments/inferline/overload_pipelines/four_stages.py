"""Four models, one after the other."""

from typing import Any


async def run(call: Any, inputs: Any) -> Any:
    tensors = inputs
    for model in ("first", "second", "third", "fourth"):
        tensors = {"x": (await call(model, tensors))["y"]}
    return {"y": tensors["x"]}
