"""Small real classifiers of real handwritten digits, in numpy: models of different strength that learn in milliseconds.

The images are scikit-learn's, 1,797 of 8x8 pixels (UCI optical recognition of handwritten digits, test part).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from horologe_common.service.settings import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Images = NDArray[np.float64]
    Labels = NDArray[np.int64]

CLASSES = 10
SIDE = 8
"""Pixels of an image, in either direction."""
STEPS = 200
"""Of gradient descent."""

Classifier: TypeAlias = "Callable[[Images], Labels]"
"""Digits [rows] of images [rows, pixels]."""


def load() -> tuple[Images, Labels]:
    """Images [1797, 64], values from 0 to 1, and their digits. Raises `SettingsError` without scikit-learn."""
    try:
        from sklearn.datasets import load_digits  # seconds to import
    except ImportError as error:
        raise SettingsError("scikit-learn: not installed, wanted the extra: pip install 'horologe[demo]'") from error
    bunch = load_digits()
    return np.asarray(bunch.data, np.float64) / 16, np.asarray(bunch.target, np.int64)


def part(images: Images, begin: int, end: int) -> Images:
    """The pixels of some of the rows of each image."""
    return images[:, begin * SIDE : end * SIDE]


def turned(images: Images, degrees: float) -> Images:
    """Rotated about their middle, counter-clockwise; each pixel between the four that it falls on."""
    angle = np.deg2rad(degrees)
    down, right = np.mgrid[:SIDE, :SIDE].reshape(2, -1) - (SIDE - 1) / 2
    at_down = np.cos(angle) * down + np.sin(angle) * right + (SIDE - 1) / 2
    at_right = np.cos(angle) * right - np.sin(angle) * down + (SIDE - 1) / 2
    framed = np.pad(images.reshape(-1, SIDE, SIDE), ((0, 0), (1, 2), (1, 2)))
    found = np.zeros((len(images), SIDE * SIDE))
    top, left = np.clip(np.floor(at_down), -1, SIDE), np.clip(np.floor(at_right), -1, SIDE)
    for rows, share_of_row in ((top, 1 - (at_down - top)), (top + 1, at_down - top)):
        for columns, share in ((left, 1 - (at_right - left)), (left + 1, at_right - left)):
            weight = np.clip(share_of_row, 0, 1) * np.clip(share, 0, 1)
            found += framed[:, rows.astype(int) + 1, columns.astype(int) + 1] * weight
    return found


def neighbour(images: Images, labels: Labels) -> Classifier:
    """The digit of the nearest image."""

    def predict(rows: Images) -> Labels:
        distances = np.square(images).sum(axis=1) - 2 * rows @ images.T
        return np.asarray(labels[distances.argmin(axis=1)])

    return predict


def centroid(images: Images, labels: Labels) -> Classifier:
    """The digit whose mean image is nearest."""
    known = np.unique(labels)
    return neighbour(np.stack([images[labels == one].mean(axis=0) for one in known]), known)


def bayes(images: Images, labels: Labels) -> Classifier:
    """Pixels independent and normal, given the digit."""
    known = np.unique(labels)
    means = np.stack([images[labels == one].mean(axis=0) for one in known])
    spread = np.stack([images[labels == one].var(axis=0) for one in known]) + 0.01

    def predict(rows: Images) -> Labels:
        far = np.square(rows[:, None, :] - means) / spread + np.log(spread)
        return np.asarray(known[far.sum(axis=2).argmin(axis=1)])

    return predict


def softmax(images: Images, labels: Labels) -> Classifier:
    """Multinomial logistic regression."""
    inputs, targets = _with_one(images), np.eye(CLASSES)[labels]
    weights = np.zeros((inputs.shape[1], CLASSES))
    for _ in range(STEPS):
        scores = np.exp(inputs @ weights)
        scores /= scores.sum(axis=1, keepdims=True)
        weights += inputs.T @ (targets - scores) / len(inputs) - 1e-4 * weights
    return lambda rows: (_with_one(rows) @ weights).argmax(axis=1)


def _with_one(images: Images) -> Images:
    return np.hstack([images, np.ones((len(images), 1))])


LEARNERS: dict[str, Callable[[Images, Labels], Classifier]] = {
    "neighbour": neighbour,
    "centroid": centroid,
    "bayes": bayes,
    "softmax": softmax,
}
