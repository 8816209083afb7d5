"""Predicted durations of a model on a share: recent measurements, or the profile where there are none.

One stall is not a model's time: with fewer than ten measurements, only a second slow batch shows that the model has
become slow. A prediction that is too long refuses requests, and refused requests are not measured. So where a
prediction has refused all requests of a budget for a while, one is admitted as a trial (`Estimate.allow_trial`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from horologe_common.clock import s
from horologe_common.core.instruments import WINDOW, RollingQuantile
from horologe_controller.core.cluster.model_profiles import BATCH_COST_NS, LOAD_SIZE, efficient_sizes, profiled_ns
from horologe_controller.core.cluster.prediction_source import PredictionSource

if TYPE_CHECKING:
    from collections.abc import Mapping

TRIAL_EXECS = 8
"""Pause between trials against measurements, in durations of a slow EXEC: slow EXECs then take at most a ninth of a
share's time. A shorter pause serves more of this model's requests and fewer of those of a model beside it
(experiments/results/schedulers.md)."""
TRIAL_NS = s(1)
"""Pause before the second trial of a model against a profile. It doubles with each failed trial, up to
`TRIAL_DOUBLINGS` times. A share has at most one trial in this time, whatever the models: an idle share is busy when the
next request comes. If this pause doubled too, a model with a wrong profile beside 100 with right ones and short SLOs
might get no trial for an hour (experiments/results/schedulers.md). See also `DynamicPace`."""
TRIAL_DOUBLINGS = 6
PROFILE_PART = 4
"""A trial may assume a quarter of the profile: profiles measured on a machine in use were up to five times too long."""
FIRST_RUN_NS = s(30)
"""Time that a batch size may take longer than predicted before it has run, if the model has never been measured: the
longest `timeout` that a Python model has by default. A first run is slow, and its prediction is a guess."""
ENOUGH = 3
"""Measurements needed to trust their median: with fewer, the only one may be an outlier. Also outliers in a row that
stalls can explain: the next one counts, since a model that blocks its worker looks like stalls."""
OUTLIER = 2
"""Multiple of what was expected beyond which a batch may be an outlier: if the worker stalled, it does not count. In
`DynamicPace` it counts for no more, so that a slow device counts from its second batch on."""
ALONE = 5
"""A single batch does not count if it took more than this multiple of the next largest measurement, or of the profile.
With a smaller multiple a device that has become slow, by 3 to 5 times in random workloads, shows one batch
later."""


class TrialState:
    """Trials of one batch size: since when the prediction refuses, failed trials in a row, budget of the last trial.

    `failed` is -1 after a trial that succeeded.
    """

    def __init__(self, since_ns: int, failed: int = 0, within_ns: int = 0) -> None:
        self.since_ns = since_ns
        self.failed = failed
        self.within_ns = within_ns


def new_pace(alone_max: int = 1000 * ALONE) -> RollingQuantile:
    """Return an empty record of recent durations of EXECs in thousandths of their profiles. Its median is the pace.

    `alone_max`: the most that a single EXEC counts for. A single stall would refuse the requests of all models.
    """
    return RollingQuantile(age_ns=s(10), quantile=0.5, alone_max=alone_max)


class ShareTrials:
    """When the next trial against a profile is allowed on a share."""

    def __init__(self) -> None:
        self.next_ns = 0


class Estimate:
    """Durations of one model on one share, by batch size: recent measurements over the profile's seed.

    Size 0 is LOAD. `pace` and `share_trials` belong to the share: recent durations of its EXECs in thousandths of their
    profiles, and when its next trial is allowed. A model without a measured profile has a pace of its own, so that its
    first measurement corrects the prediction of all sizes, and no other model's. `first_run_ns`: see `slack_ns`.
    `batch_cost_ns`: see `BATCH_COST_NS`.
    """

    __slots__ = (
        "_current",
        "_explained",
        "_faster",
        "_first_run_ns",
        "_measured",
        "_pace",
        "_share_trials",
        "_trials",
        "alone_ns",
        "content_hash",
        "efficient_sizes",
        "seed_ns",
    )  # fmt: skip

    def __init__(
        self,
        seed_ns: Mapping[int, int],
        pace: RollingQuantile,
        content_hash: str = "",
        share_trials: ShareTrials | None = None,
        first_run_ns: int = 0,
        batch_cost_ns: int = BATCH_COST_NS["device"],
    ) -> None:
        self.seed_ns = seed_ns
        self.efficient_sizes = efficient_sizes(seed_ns, batch_cost_ns)
        self.alone_ns = min([ns for size, ns in seed_ns.items() if size != LOAD_SIZE], default=1)
        """Profiled duration of the shortest batch."""
        self.content_hash = content_hash
        self._pace = pace
        self._first_run_ns = first_run_ns
        self._share_trials = share_trials or ShareTrials()
        self._measured: dict[int, RollingQuantile] = {}
        self._current: dict[int, tuple[int, int, int]] = {}
        """Size -> (valid until, high quantile, median). Cached: read ten times as often as measured."""
        self._faster = 0, 0
        """(valid until, slowest size in thousandths of its profile) while all sizes are faster than profiled."""
        self._trials: dict[int, TrialState] = {}
        self._explained = 0
        """Outliers in a row that a stall has explained."""

    def observe(self, now_ns: int, size: int, took_ns: int, *, steady: bool = True, stalled: bool = False) -> bool:
        """Add a measurement, and return True; False for an outlier that a stall explains.

        `steady`: the model's durations do not depend on the input, so it counts for the pace. `stalled`: the worker or
        the controller has stalled since the action was sent.
        """
        seed_ns = self.seed_ns.get(size)
        if seed_ns is None:
            return True
        explained = stalled and self._explained < ENOUGH and not self._is_guess(now_ns)
        if explained and took_ns > OUTLIER * self.predict(now_ns, size):
            self._explained += 1
            return False
        self._explained = 0
        measured = self._measured.get(size)
        if measured is None:
            measured = self._measured[size] = RollingQuantile()
        if self._trials:
            self._finish_trial(now_ns, size, took_ns)
        measured.observe(now_ns, took_ns)
        self._current[size] = self._summarize(now_ns, size, measured)
        if size and steady:  # LOAD says nothing about EXEC
            permille = 1000 * took_ns // (seed_ns or 1)
            self._pace.observe(now_ns, permille)
            if permille < 1000 or self._faster[1]:
                self._compare_with_profile(now_ns)
        return True

    def predict(self, now_ns: int, size: int) -> int:
        """Return a high quantile of a batch's duration. Sizes not run recently follow the profile and the pace."""
        return self.summary(now_ns, size)[1]

    def typical(self, now_ns: int, size: int) -> int:
        """Return the median duration of a batch. Sums over many batches use this instead of the high quantile."""
        return self.summary(now_ns, size)[2]

    def slack_ns(self, size: int) -> int:
        """Return how much longer than predicted a batch may take before its worker counts as hung."""
        return 0 if size in self._measured else self._first_run_ns

    def source(self, now_ns: int, size: int) -> PredictionSource:
        """Return what `predict` is made of now."""
        until_ns, predicted_ns, _ = self.summary(now_ns, size)
        measured, trial = self._measured.get(size), self._trials.get(size)
        samples = measured.recent(now_ns) if measured is not None else []
        if trial is not None and trial.within_ns and until_ns == trial.since_ns + trial.within_ns:
            return PredictionSource("trial", samples)
        left_out_ns = 0
        if samples and len(samples) < WINDOW and predicted_ns < max(samples):  # see `_summarize`
            left_out_ns = max(samples)
            samples.remove(left_out_ns)
        if samples:
            return PredictionSource("executions", samples, left_out_ns)
        seed_ns = self.seed_ns.get(size) or profiled_ns(self.seed_ns, size)
        kind: Literal["guess", "profile"] = "guess" if self._is_guess(now_ns) else "profile"
        return PredictionSource(kind, [], left_out_ns, 1000 * predicted_ns // (seed_ns or 1))

    def summary(self, now_ns: int, size: int) -> tuple[int, int, int]:
        """Return (valid until, prediction, median) of a batch. Without recent measurements the first is 0."""
        current = self._current.get(size)
        return current if current is not None and now_ns <= current[0] else self._renew_summary(now_ns, size)

    def allow_trial(self, now_ns: int, size: int, within_ns: int) -> bool:
        """Return whether a request with a budget of `within_ns`, less than predicted, may run as a trial.

        If so, `predict` returns less until the trial ends: the median of the measurements, or a part of the profile.
        """
        trial = self._trials.get(size)
        if trial is None:
            trial = self._trials[size] = TrialState(now_ns)
        optimistic_ns, next_ns = self._trial_terms(now_ns, size, trial)
        if optimistic_ns > within_ns or now_ns < next_ns:
            return False
        if size not in self._measured:
            self._share_trials.next_ns = now_ns + TRIAL_NS
        trial.since_ns, trial.within_ns = now_ns, within_ns
        trial.failed += trial.failed < TRIAL_DOUBLINGS  # reset when its measurement shows that it succeeded
        self._current[size] = now_ns + within_ns, optimistic_ns, optimistic_ns
        return True

    def _trial_terms(self, now_ns: int, size: int, trial: TrialState) -> tuple[int, int]:
        """Return (duration in the best case, when the next trial is allowed)."""
        measured, (until_ns, high_ns, median_ns) = self._measured.get(size), self._renew_summary(now_ns, size)
        if measured is None or not until_ns:
            pause_ns = TRIAL_NS << trial.failed if trial.failed >= 0 else 0
            return median_ns // PROFILE_PART, max(trial.since_ns + pause_ns, self._share_trials.next_ns)
        if measured.count < ENOUGH:
            median_ns = min(median_ns, self._profiled(now_ns, size))
        return median_ns, trial.since_ns + TRIAL_EXECS * high_ns

    def _finish_trial(self, now_ns: int, size: int, took_ns: int) -> None:
        """Drop older, slower measurements if the batch took no longer than the trial's budget."""
        trial = self._trials.get(size)
        if trial is not None and took_ns <= trial.within_ns:
            trial.failed = -1
            self._share_trials.next_ns = 0
            self._measured[size].discard_above(trial.within_ns)
            trial.within_ns = 0
        elif trial is not None:
            trial.since_ns = now_ns

    def _renew_summary(self, now_ns: int, size: int) -> tuple[int, int, int]:
        """Drop old measurements. Return the summary of those that are left, else of the scaled profile."""
        if (measured := self._measured.get(size)) is not None:
            current = self._current[size] = self._summarize(now_ns, size, measured)
            if current[0]:
                return current
            del self._measured[size], self._current[size]  # all measurements are too old
        seed_ns = self._profiled(now_ns, size)
        return 0, seed_ns, seed_ns

    def _summarize(self, now_ns: int, size: int, measured: RollingQuantile) -> tuple[int, int, int]:
        """Return the summary of the measurements. With fewer than ten, a single outlier does not count.

        The profile takes the place of a measurement that is alone. The first one of a model without a measured profile
        counts: its prediction was a guess.
        """
        until_ns, high_ns, median_ns = measured.summary(now_ns)
        if not until_ns or measured.count >= WINDOW:
            return until_ns, high_ns, median_ns
        usual_ns = measured.second_largest()
        if usual_ns is None:
            usual_ns = high_ns if self._is_guess(now_ns) else self._profiled(now_ns, size)
        if high_ns > ALONE * usual_ns:
            return until_ns, usual_ns, min(median_ns, usual_ns)
        return until_ns, high_ns, median_ns

    def _is_guess(self, now_ns: int) -> bool:
        """Return whether predictions are guesses: the model has neither a measured profile nor recent measurements."""
        return bool(self._first_run_ns) and self._pace.high_quantile(now_ns) is None

    def _profiled(self, now_ns: int, size: int) -> int:
        """Return the profile's duration, scaled by the share's pace if it is slow, or the model's if that is faster."""
        seed_ns = self.seed_ns.get(size) or profiled_ns(self.seed_ns, size)
        if size and (permille := self._pace.high_quantile(now_ns) or 0) > 1000:
            seed_ns = seed_ns * permille // 1000
        elif size and self._faster[1] and now_ns <= self._faster[0]:
            seed_ns = seed_ns * self._faster[1] // 1000
        return seed_ns

    def _compare_with_profile(self, now_ns: int) -> None:
        """Record whether all recently measured sizes are faster than profiled."""
        current = [(size, summary) for size, summary in self._current.items() if size and now_ns <= summary[0]]
        permille = max(1000 * high_ns // (self.seed_ns[size] or 1) for size, (_, high_ns, _) in current)
        until_ns = max(until_ns for _, (until_ns, _, _) in current)
        self._faster = (until_ns, permille) if permille < 1000 else (0, 0)
