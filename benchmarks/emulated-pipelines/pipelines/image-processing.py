"""Preprocess an image, then classify it."""


async def run(call, inputs):
    preprocessed = await call("preprocess", inputs)
    return await call("resnet152_v2", {"x": preprocessed["y"]})
