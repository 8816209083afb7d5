"""Makes the plans of `horologe plan make`, once or at an interval, and prints, draws and applies them."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from horologe_cli.output import is_silent, open_client, print_result, stderr_console
from horologe_cli.planning.workload_file import WORKLOADS_SUFFIX
from horologe_common.service.settings import DURATIONS, SettingsError, parse_quantity
from horologe_common.status import HorologeError
from horologe_planning.plan import PLAN_VERSION, Plan, PlanDocument, encode_plans
from horologe_planning.provisioning.device_shares import device_counts
from horologe_planning.report import Infeasible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_cli.commands.planning.planning_options import PlanOptions, ProblemOptions, ServerOptions


class PlanRequest(NamedTuple):
    """What to plan: a pipeline (empty: none), and a file of workloads."""

    pipeline: str
    workloads: Path | None


def read_request(texts: Sequence[str]) -> PlanRequest:
    """Return which argument is the pipeline and which the file of workloads, a TOML file. Raises SettingsError."""
    files = [text for text in texts if text.endswith(WORKLOADS_SUFFIX)]
    pipelines = [text for text in texts if not text.endswith(WORKLOADS_SUFFIX)]
    if len(files) > 1 or len(pipelines) > 1:
        raise SettingsError(f"got {', '.join(texts)}, wanted at most one pipeline and one file of workloads (TOML)")
    return PlanRequest(pipelines[0] if pipelines else "", Path(files[0]) if files else None)


def make_repeatedly(texts: Sequence[str], traffic: ProblemOptions, options: PlanOptions, server: ServerOptions) -> None:
    """Plan, print and apply, once or at the interval. At an interval, a plan that fails is reported on standard error.

    Raises SettingsError, HorologeError and Infeasible.
    """
    request = read_request(texts)
    if not options.every:
        make_once(request, traffic, options, server)
        return
    if not options.recent:
        raise SettingsError("--every: got no --recent, wanted it: other traffic would give the same plan again")
    interval_s = parse_quantity("--every", options.every, DURATIONS) / 1e9
    if interval_s <= 0:
        raise SettingsError(f"--every: got {options.every}, wanted more than 0")
    while True:
        try:
            make_once(request, traffic, options, server)
        except (HorologeError, Infeasible) as error:
            stderr_console().print(f"no new plan: {error}", markup=False)
        time.sleep(interval_s)


def make_once(request: PlanRequest, traffic: ProblemOptions, options: PlanOptions, server: ServerOptions) -> None:
    """Read the problems, plan them, print the plans, and draw and apply them if wanted."""
    if options.plot and request.pipeline and request.workloads:
        raise SettingsError("--plot: got a pipeline and workloads, wanted one of them")
    plans: tuple[Plan, ...] = ()
    report: dict[str, Any] = {}
    texts = []
    if request.workloads:
        from horologe_cli.planning.workload_report import plan_workload_file

        plans, report["workloads"], text = plan_workload_file(request.workloads, options)
        texts.append(text)
    if request.pipeline:
        from horologe_cli.planning.pipeline_plan import plan_pipeline

        plan, report["pipeline"], text = plan_pipeline(
            request.pipeline, traffic, options, server, is_silent(server.json)
        )
        plans = (*plans, renumber_devices(plan, device_counts(plans)))
        texts.append(text)
    if options.apply:
        with open_client(server.endpoint, server.keys) as client:
            client.tune("apply", encode_plans(plans))
        texts.append("applied: `horologe plan status` shows it")
    document = PlanDocument(PLAN_VERSION, plans, report)
    print_result(msgspec.to_builtins(document, str_keys=True), "\n".join(texts), server.json)


def renumber_devices(plan: Plan, taken: dict[str, int]) -> Plan:
    """Return the plan on other devices than the first ones of each hardware type, which other plans have."""
    first = Counter(taken)

    def renumber(device: str) -> str:
        hardware, _, number = device.rpartition("-")
        return f"{hardware}-{int(number) + first[hardware]}" if device else ""

    placements = tuple(msgspec.structs.replace(p, device=renumber(p.device)) for p in plan.placements)
    return msgspec.structs.replace(plan, placements=placements)
