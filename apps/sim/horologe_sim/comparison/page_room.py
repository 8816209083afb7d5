"""What the pages of the devices allow to serve, in a bound."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from horologe_common.clock import ms, s

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from horologe_sim.comparison.bound import BoundedLoad

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

EPOCHS_NS = ms(50), ms(500), s(5)
"""Lengths of epochs. The least bound counts."""


class PageRoom:
    """The models of each epoch, and the pages that they can use until the last of its requests is due."""

    def __init__(self, workload: BoundedLoad, chosen: Ints, epoch_ns: int) -> None:
        times, slos, models = (
            np.array(values)[chosen]
            for values in (workload.chunk.times_ns, workload.chunk.slos_ns, workload.chunk.models)
        )
        pages = np.array([model.report.spec.pages for model in workload.models], float)
        loads_ns = [model.report.profile.load_ns for model in workload.models if model.report.profile]
        fastest = float((pages / loads_ns).max()) / workload.cluster.noise.least_factor("load")
        self._room = len(workload.factors) * (workload.cluster.pages + (epoch_ns + int(slos.max())) * fastest)
        used, self._use = np.unique(times // epoch_ns * len(pages) + models, return_inverse=True)
        epochs = used // len(pages)
        self._pages = pages[used % len(pages)]
        """By use: a model in an epoch. Uses are in the order of epochs."""
        self._epochs, self._first = epochs, np.searchsorted(epochs, epochs)

    def is_short(self) -> bool:
        """Return whether the models of an epoch need more pages than there are."""
        needed = np.bincount(np.unique(self._epochs, return_inverse=True)[1], self._pages)
        return bool(needed.max() > self._room)

    def most_valuable(self, values: Floats) -> tuple[float, Floats]:
        """Return the total value of the requests of the models that fit, and the part of each request that does.

        In each epoch the models with the highest value per page fit, and a part of the last one.
        """
        value = np.bincount(self._use, values, len(self._pages))
        order = np.lexsort((-value / self._pages, self._epochs))
        before = np.concatenate([[0.0], np.cumsum(self._pages[order])])
        fits = np.empty(len(order))
        fits[order] = np.clip((self._room - before[:-1] + before[self._first]) / self._pages[order], 0.0, 1.0)
        return float(value @ fits), fits[self._use]
