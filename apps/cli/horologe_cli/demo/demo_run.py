"""The measurements of the demo, after mixed traffic: accuracy, feedback, capacity under a deadline, and overload."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from horologe import AsyncClient
from horologe_cli.demo.digits import (
    NOVICE,
    Accuracy,
    FeedbackEffect,
    held_out,
    measure_feedback,
    measure_over_http,
    measure_over_sdk,
)
from horologe_cli.demo.profiler_cost import MIN_SHARE, ProfilerCost, compare_rates, read_dynamic
from horologe_cli.local.local_system import is_loading
from horologe_common.status import HorologeError
from horologe_load.capacity_search import CapacitySearch, Confirmation
from horologe_load.mixed_traffic import send_mixed_traffic
from horologe_load.samples import LoadSummary
from horologe_load.targets import ModelLoad

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

    from horologe_cli.demo.demo_options import DemoLoad, RunningSystem
    from horologe_common.models import ModelSpec
    from horologe_common.wire import ModelState

DIGITS = "digits-"
POLICIES = ("exp3", "exp4")
MIN_EXP3_GAIN = 0.03
"""Required gain of accuracy by feedback under exp3, with one of four models right two times in three."""
NOOP = "noop"
LEARN_SHARE = 0.3
"""Share of the progress bar for the mixed traffic."""
MIN_MODELS = 3
MIN_ACCURACY = 0.9
WARM_UP_S = 1.5
WARM_UP_IN_FLIGHT = 16
FIRST_RATE = 0.5
"""First rate of the ramp, as a share of the throughput of a closed loop."""
CONFIRM_STEPS = 1.5
"""Duration of the confirmation, in steps."""
OVERLOAD = 2.0
OVERLOAD_STEPS = 2.5
"""Duration of the overload, in steps."""
OVERLOAD_TRIES = 2
"""Another program may occupy the machine for a moment, so a failed overload is measured once more."""
MIN_GOODPUT = 0.9
MAX_LATE = 0.001
MAX_REFUSAL_MS = 20.0
READY_TIMEOUT_S, POLL_S = 120.0, 0.5
"""How long models of a running system may be loading, and how often it is asked."""


class Criterion(msgspec.Struct):
    """A requirement that the demo checks."""

    name: str
    wanted: str
    got: str
    met: bool


class DemoResult(msgspec.Struct):
    """All measurements of the demo."""

    learn_s: float = 0.0
    """Seconds of mixed traffic before the measurements."""
    accuracies: list[Accuracy] = []
    feedback_effects: list[FeedbackEffect] = []
    model: str = ""
    ramp: list[LoadSummary] = []
    peak: LoadSummary | None = None
    """The confirmation of the capacity."""
    overload: LoadSummary | None = None
    """The load of `OVERLOAD` times the capacity."""
    dynamic: list[str] = []
    """Models, as `name/version`, that the scheduler treats as dynamic after the last measurement."""
    profiler_costs: list[ProfilerCost] = []
    criteria: list[Criterion] = []

    @property
    def passed(self) -> bool:
        return bool(self.criteria) and all(criterion.met for criterion in self.criteria)


class DemoRun:
    """One run of the demo. `on_progress(phase, share)` is called with the share of the demo that is finished.

    `headers`: of each HTTP request.
    """

    def __init__(
        self,
        http: str,
        load: DemoLoad,
        on_progress: Callable[[str, float], None],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._http = http
        self._headers = headers or {}
        self._load = load
        self._on_progress = on_progress
        self.result = DemoResult()

    async def run(self, client: AsyncClient, states: list[ModelState]) -> DemoResult:
        """Measure everything. The system must be ready; `states` are its models."""
        (images, digits), specs = held_out(), ready_specs(states)
        await self._send_mixed_traffic(client, specs)
        await self._measure_accuracy(client, specs, images, digits)
        await self._measure_feedback(client, specs, images, digits)
        result = self.result
        if result.accuracies:
            result.model = max(result.accuracies, key=lambda accuracy: accuracy.exec_ms).model
            load = ModelLoad(client, result.model, images, self._load.slo_ms, self._load.seed)
            await self._measure_capacity(load)
        return result

    async def compare_profiler(
        self, client: AsyncClient, without: AsyncClient, states: list[ModelState], metrics: Iterable[str]
    ) -> None:
        """Compare throughput with that of a system `without` a profiler, then read the dynamic models at `metrics`."""
        chosen = [spec for spec in ready_specs(states) if spec.name == NOOP or spec.name.startswith(DIGITS)]
        self.result.profiler_costs = await compare_rates(
            client,
            without,
            chosen,
            np.random.default_rng(self._load.seed),
            lambda name: self._on_progress(f"{name} with and without a profiler", 0.92),
        )
        self.result.dynamic = read_dynamic(metrics)

    async def _send_mixed_traffic(self, client: AsyncClient, specs: list[ModelSpec]) -> None:
        self.result.learn_s = self._load.learn_s
        if self._load.learn_s:
            await send_mixed_traffic(
                client,
                self._http,
                specs,
                self._load.learn_s,
                lambda phase, share: self._on_progress(f"mixed traffic: {phase}", LEARN_SHARE * share),
                self._headers,
            )

    async def _measure_accuracy(
        self, client: AsyncClient, specs: list[ModelSpec], images: NDArray[np.float32], digits: NDArray[np.int64]
    ) -> None:
        specs = [spec for spec in specs if spec.name.startswith(DIGITS)]
        for number, spec in enumerate(specs):
            self._on_progress(f"accuracy of {spec.name}", LEARN_SHARE + 0.08 * number / len(specs))
            self.result.accuracies.append(await measure_over_sdk(client, spec, images, digits))
        if specs:
            self._on_progress(f"accuracy of {specs[-1].name} over HTTP", 0.38)
            accuracy = await asyncio.to_thread(measure_over_http, self._http, self._headers, specs[-1], images, digits)
            self.result.accuracies.append(accuracy)

    async def _measure_feedback(
        self, client: AsyncClient, specs: list[ModelSpec], images: NDArray[np.float32], digits: NDArray[np.int64]
    ) -> None:
        models = [spec.name for spec in specs if spec.name == NOVICE or spec.name.startswith(DIGITS)]
        for policy in POLICIES if NOVICE in models else ():
            self._on_progress(f"feedback to an application: {policy}", 0.4)
            self.result.feedback_effects.append(await measure_feedback(client, models, images, digits, policy))

    async def _measure_capacity(self, load: ModelLoad) -> None:
        self._on_progress("warming up", 0.45)
        ramp = CapacitySearch(FIRST_RATE * (await load.saturate(WARM_UP_IN_FLIGHT, WARM_UP_S)).throughput)
        while (rate := ramp.next_rate()) is not None:
            self._on_progress(f"capacity: {rate:,.0f} requests/s", min(0.7, 0.46 + 0.03 * len(self.result.ramp)))
            step = await load.offer_rate(rate, self._load.step_s)
            self.result.ramp.append(step)
            ramp.observe(rate, step.attained)
        if ramp.carried is None:
            return
        confirmation = Confirmation(ramp.carried)
        while (rate := confirmation.next_rate()) is not None:
            self._on_progress(f"confirming the capacity: {rate:,.0f} requests/s", 0.75)
            step = await load.offer_rate(rate, CONFIRM_STEPS * self._load.step_s)
            confirmation.observe(step.attained)
            self.result.peak = step if confirmation.confirmed else None
        if self.result.peak:
            await self._measure_overload(load, self.result.peak)

    async def _measure_overload(self, load: ModelLoad, peak: LoadSummary) -> None:
        for attempt in range(OVERLOAD_TRIES):
            self._on_progress(f"twice the capacity: {OVERLOAD * peak.rate:,.0f} requests/s", 0.82 + 0.05 * attempt)
            step = await load.offer_rate(OVERLOAD * peak.rate, OVERLOAD_STEPS * self._load.step_s)
            self.result.overload = step
            if all(criterion.met for criterion in overload_criteria(peak, step)):
                return


async def measure_running(
    system: RunningSystem, load: DemoLoad, on_progress: Callable[[str, float], None]
) -> DemoResult:
    """Wait until no model of a running system is loading, then measure it, for example that of docker-compose.yml.

    Raises HorologeError if the system does not answer, OSError if it cannot be reached over HTTP.
    """
    run = DemoRun(system.http, load, on_progress, system.headers())
    async with AsyncClient(system.endpoint, keys=system.keys or None) as client:
        await run.run(client, await _wait_until_loaded(client))
    run.result.criteria = check_criteria(run.result)
    return run.result


async def _wait_until_loaded(client: AsyncClient) -> list[ModelState]:
    end = time.monotonic() + READY_TIMEOUT_S
    while True:
        try:
            states = await client.models()
        except HorologeError:
            if time.monotonic() > end:
                raise
            states = []
        loaded = states and not any(is_loading(state) for state in states)
        if loaded or (states and time.monotonic() > end):
            return states
        await asyncio.sleep(POLL_S)


def check_criteria(result: DemoResult) -> list[Criterion]:
    """Return every criterion of the demo, and whether the result meets it."""
    models = {accuracy.model for accuracy in result.accuracies}
    worst = min((accuracy.share for accuracy in result.accuracies), default=0.0)
    wanted = f">= {MIN_ACCURACY:.0%}, {MIN_MODELS} models"
    met = len(models) >= MIN_MODELS and worst >= MIN_ACCURACY
    criteria = [Criterion("accuracy, each model", wanted, f"{worst:.1%}, {len(models)}", met)]
    for effect in result.feedback_effects:
        least = MIN_EXP3_GAIN if effect.policy == "exp3" else 0.0
        gain = effect.after - effect.before
        name = f"{effect.policy}: accuracy gained by feedback"
        criteria.append(Criterion(name, f">= {least:.0%}", f"{gain:.1%}", gain >= least))
    if result.peak is None or result.overload is None:
        return [*criteria, Criterion("a capacity under the SLO", "some", "none found", False)]
    in_time = Criterion("at 1x: answered in time", ">= 99%", f"{result.peak.attained:.2%}", True)
    criteria += [in_time, *overload_criteria(result.peak, result.overload)]
    if result.profiler_costs:
        slowest = min(result.profiler_costs, key=lambda cost: cost.share)
        got = f"{slowest.share:.1%}, {slowest.model}"
        criteria.append(
            Criterion("throughput, of that without a profiler", f">= {MIN_SHARE:.0%}", got, slowest.share >= MIN_SHARE)
        )
    return criteria


def ready_specs(states: Iterable[ModelState]) -> list[ModelSpec]:
    """Return the specifications of the ONNX models that can be served."""
    return [state.spec for state in states if state.state == "READY" and state.spec.runtime == "onnx"]


def overload_criteria(peak: LoadSummary, step: LoadSummary) -> list[Criterion]:
    """Return the criteria of a load `step` above the capacity: goodput, late answers and refusals."""
    goodput = step.goodput / peak.goodput if peak.goodput else 0.0
    late = step.late / step.sent if step.sent else 0.0
    rest = step.sent - step.in_time - step.late
    with_reason = sum(count for reason, count in step.reasons.items() if reason)
    all_refused = rest == step.refused and with_reason >= step.refused
    refusal_ms = step.refusal_p99_ms
    load = f"at {step.rate / peak.rate:.0f}x:"
    return [
        Criterion(f"{load} goodput, of the peak", f">= {MIN_GOODPUT:.0%}", f"{goodput:.1%}", goodput >= MIN_GOODPUT),
        Criterion(f"{load} late", f"<= {MAX_LATE:.1%}", f"{late:.2%} ({step.late})", late <= MAX_LATE),
        Criterion(f"{load} the rest refused by reason", "all", f"{step.refused:,} of {rest:,}", all_refused),
        Criterion(
            f"{load} p99 of a refusal",
            f"<= {MAX_REFUSAL_MS:g} ms",
            f"{refusal_ms:.1f} ms",
            refusal_ms <= MAX_REFUSAL_MS,
        ),
    ]
