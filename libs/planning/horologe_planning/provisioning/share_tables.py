"""Tables of every workload at every share of a GPU type, and Algorithm 2 on them for many GPUs at once.

A row starts from the batch size and the least share of its workload alone (iGniter Theorem 1, Eq. 18). At 400 requests
per second, 7 requests arrive in 17.5 ms, and with an SLO of 40 ms a batch may take 20 ms. `resnet50` executes batches
of 7 in this time on 25% of a V100, without a margin. Every other batch size needs as much or more.

Algorithm 2 starts with the shares that `alexnet`, `resnet50` and `vgg19` need alone: 4, 11 and 14 steps of 2.5%. A
workload that is late beside the others gets a step more, until none is late: 5, 12 and 15 steps.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from horologe_common.interference.prediction import (
    MS_PER_S,
    Alone,
    Array,
    Index,
    Prediction,
    predict_shares,
    run_alone,
    stack_coefficients,
)
from horologe_planning.provisioning.workloads import GpuType, Workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from horologe_common.interference.coefficients import GpuCoefficients, ModelCoefficients
    from horologe_common.interference.prediction import InterferenceModel


_SLACK = 1e-9


class ShareBound(NamedTuple):
    """Batch size and least share. `units`: share in steps of r_unit; above 100% if no share suffices."""

    batch: int
    units: int


def least_bound(gpu: GpuCoefficients, model: ModelCoefficients, workload: Workload, margin: float = 0.0) -> ShareBound:
    """Return the permitted batch size with the least share that meets Eq. 13 and 14.

    Eq. 17 of the paper rounds the batch up and allows SLO / 2 for it. The batch rounded down has less time, and less
    work. `margin`: relative error of the prediction that the share must cover.
    """
    batch = np.array(workload.batches, float)
    latency_limit = np.full_like(batch, workload.slo_ms / 2 / (1 + margin))
    cycle_limit = MS_PER_S * batch / workload.rate / (1 + margin)
    shares = least_shares(gpu, model, batch, latency_limit, cycle_limit)
    best = int(np.argmin(shares))
    return ShareBound(workload.batches[best], share_units(float(shares[best]), gpu))


def least_shares(
    gpu: GpuCoefficients, model: ModelCoefficients, batch: Array, latency_limit_ms: Array, cycle_limit_ms: Array
) -> Array:
    """Return the least share in percent per batch size, infinite where none suffices (Eq. 18).

    `latency_limit_ms` bounds t_inf (Eq. 14), `cycle_limit_ms` bounds t_gpu + t_feedback (Eq. 13).
    """
    load, feedback = (rows * batch / gpu.pcie_bytes_per_ms for rows in (model.load_bytes, model.feedback_bytes))
    gpu_ms = np.minimum(latency_limit_ms - load, cycle_limit_ms) - feedback
    delta = gpu_ms - model.scheduling_delay_ms - model.k5 - model.k6 * batch
    gamma = model.k1 * batch**2 + model.k2 * batch + model.k3
    return np.asarray(np.where(delta > 0, gamma / np.where(delta > 0, delta, 1.0) - model.k4, np.inf))


def share_units(share_percent: float, gpu: GpuCoefficients) -> int:
    """Return a share in steps of r_unit, at least one step; more than the whole if it is above 100%."""
    whole = round(100 / gpu.share_unit_percent)
    if not share_percent <= 100 + _SLACK:
        return whole + 1
    return max(ceil(share_percent / gpu.share_unit_percent - _SLACK), 1)


NO_WORKLOAD = -1


class Allocation(NamedTuple):
    """Result of Algorithm 2 for each GPU: shares in steps of r_unit, and whether they meet every SLO within 100%."""

    units: Index
    fits: Index


class ShareTables:
    """Solo figures, batch size and limits of workloads on one GPU type. A row per workload, a column per share.

    A workload without a profile on this GPU type, or too large for one GPU, has a least share above 100%.
    """

    def __init__(self, kind: GpuType, model: InterferenceModel, margin: float) -> None:
        """`margin`: standard deviations of the prediction error to cover."""
        self.kind, self._model, self._margin = kind, model, margin
        self.workloads: list[Workload] = []
        self.batch = np.zeros(0)
        self.least = np.zeros(0, np.intp)
        """r_lower in steps of r_unit."""
        self._alone = np.zeros((len(Alone._fields), 0, kind.whole + 1))
        self._limits = np.zeros((2, 0))
        self._owner = np.zeros(0, np.intp)
        """Number of the workload's name: equal for the parts of a workload."""
        self._has_parts = False

    def append(self, workloads: Sequence[Workload]) -> None:
        """Add rows for workloads."""
        if not workloads:
            return
        first = len(self.workloads)
        self.workloads += workloads
        self.batch = np.append(self.batch, np.zeros(len(workloads)))
        self.least = np.append(self.least, np.zeros(len(workloads), np.intp))
        self._number_owners()
        self._alone = np.pad(self._alone, ((0, 0), (0, len(workloads)), (0, 0)))
        self._limits = np.pad(self._limits, ((0, 0), (0, len(workloads))))
        self._compute(np.arange(first, len(self.workloads)))

    def replace(self, row: int, workload: Workload) -> None:
        """Give a row to another workload, or to the same workload with another rate."""
        self.workloads[row] = workload
        self._number_owners()
        self._compute(np.array([row]))

    def _number_owners(self) -> None:
        numbers: dict[str, int] = {}
        owner = [numbers.setdefault(workload.name, len(numbers)) for workload in self.workloads]
        self._owner, self._has_parts = np.array(owner, np.intp), len(numbers) < len(owner)

    def _compute(self, rows: Index) -> None:
        workloads = [self.workloads[row] for row in rows]
        self._tabulate(rows, [self._bound(workload) for workload in workloads])
        for row in rows[self.least[rows] > self.kind.whole]:
            # Below the power cap, another batch size may need the least share. Eq. 18 leaves the cap out.
            workload = self.workloads[row]
            rate, batch = largest_rate(self.kind, self._model, workload, self._margin)
            if workload.rate <= rate:
                self._tabulate(np.array([row]), [ShareBound(batch, 1)])

    def _tabulate(self, rows: Index, bounds: Sequence[ShareBound]) -> None:
        """Fill the tables of these rows for the batch sizes of the bounds. Raise shares that are too small alone."""
        gpu, models = self.kind
        workloads = [self.workloads[row] for row in rows]
        fallback = next(iter(models.values()))
        coefficients = [models.get(workload.model, fallback) for workload in workloads]
        batch = np.array([bound.batch for bound in bounds], float)
        share = np.arange(self.kind.whole + 1.0) * gpu.share_unit_percent
        alone = run_alone(gpu, stack_coefficients(coefficients)[:, :, None], batch[:, None], share[None, :])
        rate, slo = (np.array([getattr(workload, field) for workload in workloads]) for field in ("rate", "slo_ms"))
        margins = np.array([1 + self._margin * model.relative_error for model in coefficients])
        self._alone[:, rows] = np.stack(alone)
        self._limits[:, rows] = np.stack([slo / 2, MS_PER_S * batch / rate]) / margins
        self.batch[rows] = batch
        self.least[rows] = [bound.units for bound in bounds]
        allocation = self.allocate(rows[:, None], self.least[rows][:, None])
        self.least[rows] = np.where(allocation.fits, allocation.units[:, 0], self.kind.whole + 1)

    def predict(self, members: Index, units: Index) -> Prediction:
        """Return the prediction for GPUs with the given rows and shares; NO_WORKLOAD marks an empty slot."""
        places = np.maximum(members, 0) * (self.kind.whole + 1) + units
        alone = Alone(*self._alone.reshape(len(Alone._fields), -1)[:, places])
        return self._model.predict(self.kind.gpu, alone)

    def allocate(self, members: Index, units: Index) -> Allocation:
        """Raise shares by one step until no workload misses its SLO or a GPU is full (Algorithm 2).

        `members` and `units` have an axis of GPUs and an axis of slots. Two parts of one workload never fit on one GPU:
        they would be one part.
        """
        units, fits = units.copy(), np.zeros(len(units), dtype=np.intp)
        pending = np.flatnonzero((units.sum(axis=1) <= self.kind.whole) & ~self._repeats(members))
        while len(pending):
            late = self._late(members[pending], units[pending])
            fits[pending[~late.any(axis=1)]] = 1
            pending, late = pending[late.any(axis=1)], late[late.any(axis=1)]
            units[pending] += late
            pending = pending[units[pending].sum(axis=1) <= self.kind.whole]
        return Allocation(units, fits)

    def _repeats(self, members: Index) -> NDArray[np.bool_]:
        """Return for each GPU whether two of its rows are parts of one workload."""
        if not self._has_parts or members.shape[1] < 2:
            return np.zeros(len(members), bool)
        owners = np.where(members == NO_WORKLOAD, -1 - np.arange(members.shape[1]), self._owner[members])
        owners.sort(axis=1)
        return np.asarray((owners[:, 1:] == owners[:, :-1]).any(axis=1))

    def limits(self, members: Index) -> Array:
        """Return the limits, less the margin, of t_inf (Eq. 14) and of t_gpu + t_feedback (Eq. 13) in ms."""
        return np.asarray(self._limits[:, np.maximum(members, 0)])

    def _late(self, members: Index, units: Index) -> Index:
        """Return 1 for each workload that misses Eq. 13 or Eq. 14, else 0."""
        predicted = self.predict(members, units)
        latency_limit, cycle_limit = self.limits(members)
        missed = (predicted.latency_ms > latency_limit) | (predicted.gpu_ms + predicted.feedback_ms > cycle_limit)
        return np.asarray(missed & (members != NO_WORKLOAD), dtype=np.intp)

    def _bound(self, workload: Workload) -> ShareBound:
        """Return the batch size and the least share of a workload alone, with the margin."""
        gpu, models = self.kind
        if workload.model not in models:
            return ShareBound(1, self.kind.whole + 1)
        model = models[workload.model]
        return least_bound(gpu, model, workload, self._margin * model.relative_error)


def largest_rate(kind: GpuType, model: InterferenceModel, workload: Workload, margin: float) -> tuple[float, int]:
    """Return the most requests per second that a whole GPU serves within the SLO, and the batch size for it.

    The rate is 0 if not even batch 1 meets the SLO, or if the model has no profile on this GPU type.
    """
    if workload.model not in kind.models:
        return 0.0, 1
    coefficients = kind.models[workload.model]
    factor = 1 + margin * coefficients.relative_error
    batch = np.array(workload.batches, float)
    share = np.full_like(batch, kind.whole * kind.gpu.share_unit_percent)
    stacked = stack_coefficients([coefficients])[:, :, None]
    predicted = predict_shares(model, kind.gpu, stacked, batch[:, None], share[:, None])
    in_time = predicted.latency_ms[:, 0] <= workload.slo_ms / 2 / factor
    rates = predicted.throughput[:, 0] / factor * in_time * (1 - 1e-9)  # a part at this rate fits despite rounding
    best = int(np.argmax(rates))
    return float(rates[best]), workload.batches[best]
