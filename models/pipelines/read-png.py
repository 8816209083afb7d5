"""Decode PNG files to images of 8x8 pixels, and classify the digits on them."""


async def run(call, inputs):
    decoded = await call("decode-png", {"file": inputs["file"]})
    return await call("digits-cnn", {"image": decoded["image"]})
