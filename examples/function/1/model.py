"""A plain function on strings: count the words of a text."""

import numpy as np


def words(text):
    return len(text.split())


class Model:
    def predict_batch(self, inputs):
        return {"words": np.array([[words(text)] for text in inputs["text"][:, 0]], np.int64)}
