"""Detect objects in a frame. Then identify vehicles with their plates, and persons, of those that it shows."""

import asyncio
import random


async def run(call, inputs):
    content = random.Random(int(inputs["x"][0, 0]))
    crop = {"x": (await call("inceptionv3", inputs))["y"]}
    branches = []
    if content.random() < 0.6:
        branches.append(identify_vehicles(call, crop, content))
    if content.random() < 0.4:
        branches += [call("mobile_pose_resnet50_v1", crop) for _ in range(content.randint(1, 2))]
    await asyncio.gather(*branches)
    return {"y": crop["x"]}


async def identify_vehicles(call, crop, content):
    vehicles = [call("resnet50_v2", crop) for _ in range(content.randint(1, 2))]
    identified = await asyncio.gather(*vehicles)
    if content.random() < 0.5:
        await call("alpr", {"x": identified[0]["y"]})
