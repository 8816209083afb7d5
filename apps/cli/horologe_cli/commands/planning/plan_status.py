"""Text of `horologe plan status`: applied plans, their replicas and shares, workers, and the tuner's decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_cli.output import console, print_json
from horologe_sim.report.tables import Table

if TYPE_CHECKING:
    from rich.console import Console


def print_status(status: dict[str, Any], json: bool) -> None:
    """Print the status of the tuner."""
    if json:
        print_json(status)
        return
    out = console()
    if status["blind"]:
        out.print(f"blind: {status['blind']}: nothing is scaled", style="yellow")
    if status["unserved_models"]:
        out.print(f"not served: {', '.join(status['unserved_models'])}", style="yellow")
    if status["scaler_error"]:
        out.print(f"scaler {status['scaler']}: {status['scaler_error']}", style="red", markup=False)
    if not status["plans"]:
        out.print("no plan is applied")
    for plan in status["plans"]:
        _print_plan(out, plan, status["dry_run"])
    _print_workers(out, status)
    if status["journal"]:
        table = Table(("ago", "event", "plan", "what"), left=4)
        for entry in status["journal"]:
            event = entry["event"] + (" (dry run)" if entry["dry_run"] else "")
            table.add_row(f"{entry['age_ns'] / 1e9:.0f} s", event, entry["subject"] or "-", entry["text"])
        table.print(out)


def _print_plan(out: Console, plan: dict[str, Any], dry_run: bool) -> None:
    mode = ", dry run" if dry_run or plan["dry_run"] else ""
    demand = f", needs {plan['demand']:.0f} queries/s" if plan["demand"] else ""
    out.print(f"plan {plan['name']}{mode}: observed for {plan['observed_ns'] / 1e9:.0f} s{demand}")
    if plan["replicas"]:
        table = Table(("stage", "replicas", "planned"), left=1)
        for stage, replicas in plan["replicas"].items():
            table.add_row(stage, replicas, plan["planned_replicas"][stage])
        table.print(out)
    if plan["windows_ns"]:
        rates = Table(("window", "queries/s", "planned for"), left=1)
        for window_ns, rate, planned in zip(plan["windows_ns"], plan["rates"], plan["planned_rates"], strict=True):
            rates.add_row(f"{window_ns / 1e9:g} s", f"{rate:.1f}", f"{planned:.1f}")
        rates.print(out)
    if plan["stages"]:
        _print_stages(out, plan["stages"])


def _print_stages(out: Console, stages: list[dict[str, Any]]) -> None:
    """Print the stages on shares as planned, and beside it the last second."""
    columns = (
        "stage", "device", "share", "planned", "shadow", "req/s", "planned", "SLO ms", "predicted exec ms", "P99 ms",
        "beyond SLO", "state",
    )  # fmt: skip
    table = Table(columns, left=2)
    for stage in stages:
        p99_ns, requests = stage["p99_ns"], stage["requests"]
        for share in stage["shares"]:
            shadow = f"{share['shadow_percent']:g}%{'' if share['shadow_ready'] else ' starting'}"
            table.add_row(
                stage["stage"],
                share["device"],
                f"{share['percent']:g}%",
                f"{share['planned_percent']:g}%",
                shadow if share["shadow_percent"] else "-",
                requests,
                f"{stage['planned_rate']:.0f}",
                f"{stage['slo_ns'] / 1e6:g}",
                f"{stage['predicted_ns'] / 1e6:.1f}",
                f"{p99_ns / 1e6:.1f}" if p99_ns is not None else "-",
                f"{stage['beyond'] / requests:.1%}" if requests else "-",
                stage["state"],
            )
    table.print(out)


def _print_workers(out: Console, status: dict[str, Any]) -> None:
    kinds = {**status["workers_wanted"], **status["devices_connected"]}
    table = Table(("hardware", "workers wanted", "running", "connected"), left=1)
    for hardware in kinds:
        columns = [
            status[name].get(hardware, "-") for name in ("workers_wanted", "workers_running", "devices_connected")
        ]
        table.add_row(hardware, *columns)
    if kinds:
        table.print(out)
