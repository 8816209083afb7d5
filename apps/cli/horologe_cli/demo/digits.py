"""scikit-learn's bundled handwritten digits, split once and for all: what the demo's models learn and are tested on.

1,797 real images of 8x8 pixels, values 0 to 16 (UCI optical recognition of handwritten digits, test part).
Every fourth image is held out, so that the split needs no random numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

HELD_OUT_EVERY = 4


def training() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Images [1347, 64] and digits [1347] that the models are fitted to."""
    images, digits, held = _split()
    return images[~held], digits[~held]


def held_out() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Images [450, 64] and digits [450] that no model has seen. Raises ImportError without scikit-learn."""
    images, digits, held = _split()
    return images[held], digits[held]


def _split() -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.bool_]]:
    from sklearn.datasets import load_digits  # seconds to import, and only the demo needs it

    bunch = load_digits()
    images = np.ascontiguousarray(bunch.data, np.float32)
    return images, bunch.target.astype(np.int64), np.arange(len(images)) % HELD_OUT_EVERY == 0
