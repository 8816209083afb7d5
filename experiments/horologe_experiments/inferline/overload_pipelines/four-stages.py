"""Four models, one after the other."""


async def run(call, inputs):
    tensors = inputs
    for model in ("first", "second", "third", "fourth"):
        tensors = {"x": (await call(model, tensors))["y"]}
    return {"y": tensors["x"]}
