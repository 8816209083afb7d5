"""Classifiers of handwritten digits in numpy: models of different accuracy that train in milliseconds.

The 1,797 images of 8x8 pixels come with scikit-learn (UCI optical recognition of handwritten digits, test part).
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
"""Width and height of an image in pixels."""
STEPS = 200
"""Steps of gradient descent."""

Classifier: TypeAlias = "Callable[[Images], Labels]"
"""Maps images [rows, pixels] to digits [rows]."""


def load_digits() -> tuple[Images, Labels]:
    """Return images [1797, 64] of values from 0 to 1, and their digits. Raises `SettingsError` without scikit-learn."""
    try:
        import sklearn.datasets  # takes seconds
    except ImportError as error:
        raise SettingsError("scikit-learn: not installed: pip install 'horologe[models]'") from error
    bunch = sklearn.datasets.load_digits()
    return np.asarray(bunch.data, np.float64) / 16, np.asarray(bunch.target, np.int64)


def crop_rows(images: Images, begin: int, end: int) -> Images:
    """Return the pixels of rows `begin` to `end` (exclusive) of each image."""
    return images[:, begin * SIDE : end * SIDE]


def rotate(images: Images, degrees: float) -> Images:
    """Rotate images counter-clockwise about their centre, with bilinear interpolation."""
    angle = np.deg2rad(degrees)
    down, right = np.mgrid[:SIDE, :SIDE].reshape(2, -1) - (SIDE - 1) / 2
    at_down = np.cos(angle) * down + np.sin(angle) * right + (SIDE - 1) / 2
    at_right = np.cos(angle) * right - np.sin(angle) * down + (SIDE - 1) / 2
    framed = np.pad(images.reshape(-1, SIDE, SIDE), ((0, 0), (1, 2), (1, 2)))
    rotated = np.zeros((len(images), SIDE * SIDE))
    top, left = np.clip(np.floor(at_down), -1, SIDE), np.clip(np.floor(at_right), -1, SIDE)
    for rows, share_of_row in ((top, 1 - (at_down - top)), (top + 1, at_down - top)):
        for columns, share in ((left, 1 - (at_right - left)), (left + 1, at_right - left)):
            weight = np.clip(share_of_row, 0, 1) * np.clip(share, 0, 1)
            rotated += framed[:, rows.astype(int) + 1, columns.astype(int) + 1] * weight
    return rotated


def fit_neighbour(images: Images, labels: Labels) -> Classifier:
    """Return a classifier that answers the digit of the nearest image."""

    def predict(rows: Images) -> Labels:
        distances = np.square(images).sum(axis=1) - 2 * rows @ images.T
        return np.asarray(labels[distances.argmin(axis=1)])

    return predict


def fit_centroid(images: Images, labels: Labels) -> Classifier:
    """Return a classifier that answers the digit whose mean image is nearest."""
    digits = np.unique(labels)
    return fit_neighbour(np.stack([images[labels == digit].mean(axis=0) for digit in digits]), digits)


def fit_bayes(images: Images, labels: Labels) -> Classifier:
    """Return a naive Bayes classifier with normally distributed pixels."""
    digits = np.unique(labels)
    means = np.stack([images[labels == digit].mean(axis=0) for digit in digits])
    spread = np.stack([images[labels == digit].var(axis=0) for digit in digits]) + 0.01

    def predict(rows: Images) -> Labels:
        distances = np.square(rows[:, None, :] - means) / spread + np.log(spread)
        return np.asarray(digits[distances.sum(axis=2).argmin(axis=1)])

    return predict


def fit_softmax(images: Images, labels: Labels) -> Classifier:
    """Return a classifier by multinomial logistic regression."""
    inputs, targets = _append_ones(images), np.eye(CLASSES)[labels]
    weights = np.zeros((inputs.shape[1], CLASSES))
    for _ in range(STEPS):
        scores = np.exp(inputs @ weights)
        scores /= scores.sum(axis=1, keepdims=True)
        weights += inputs.T @ (targets - scores) / len(inputs) - 1e-4 * weights
    return lambda rows: (_append_ones(rows) @ weights).argmax(axis=1)


def _append_ones(images: Images) -> Images:
    return np.hstack([images, np.ones((len(images), 1))])


LEARNERS: dict[str, Callable[[Images, Labels], Classifier]] = {
    "neighbour": fit_neighbour,
    "centroid": fit_centroid,
    "bayes": fit_bayes,
    "softmax": fit_softmax,
}
