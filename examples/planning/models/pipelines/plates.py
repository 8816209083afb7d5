"""Find number plates, then read them: two emulated models, which wait instead of computing."""


async def run(call, inputs):
    found = await call("detect", inputs)
    return await call("read", {"x": found["y"]})
