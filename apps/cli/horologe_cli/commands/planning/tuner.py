"""`horologe tuner ...`: apply plans of pipelines to a running system, and watch what the tuner decides."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from horologe_cli.output import DEFAULT_ENDPOINT, Endpoint, ExitCode, Json, Keys, call_server, console, fail, print_json
from horologe_sim.report.tables import Table

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(
    help="The tuner: it scales the stages of applied plans as their traffic changes.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def status(endpoint: Endpoint = DEFAULT_ENDPOINT, keys: Keys = "", json: Json = False) -> None:
    """Show the applied plans, their replicas, shares and traffic, the workers and the last decisions.

    \b
    Examples:
      horologe tuner status
      horologe tuner status --json | jq '.plans[].replicas'
    """
    _print(call_server(endpoint, keys, lambda client: client.tune("status")), json)


@app.command()
def apply(
    file: Annotated[Path, typer.Argument(help="Plan written by `horologe plan --json`.", metavar="FILE")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report what the tuner would do.")] = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    keys: Keys = "",
    json: Json = False,
) -> None:
    """Apply a plan: start its workers, assign its models to them, and scale both from now on.

    It replaces an earlier plan of the same pipeline. A plan of shares (`horologe provision --json`) replaces the
    earlier one.

    \b
    Examples:
      horologe tuner apply plan.json
      horologe tuner apply plan.json --dry-run
    """
    document = _read_plan(file)
    _print(call_server(endpoint, keys, lambda client: client.tune("apply", document, dry_run=dry_run)), json)


@app.command()
def withdraw(
    pipeline: Annotated[str, typer.Argument(help="Name of the pipeline, or `sharing`.", metavar="PIPELINE")],
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    keys: Keys = "",
    json: Json = False,
) -> None:
    """Withdraw the plan of a pipeline, or the plan of shares. The workers that serve keep running, for any model.

    \b
    Example:
      horologe tuner withdraw video-monitoring
    """
    _print(call_server(endpoint, keys, lambda client: client.tune("withdraw", pipeline.encode())), json)


def _read_plan(file: Path) -> bytes:
    """Return the tuner's plan in a file of `horologe plan --json`, or the whole file if it is such a plan itself."""
    import json as jsonlib

    from horologe_common.service.user_files import read_json

    try:
        document = read_json(file, object)
    except OSError as error:
        fail(f"{file}: {error.strerror}", ExitCode.USAGE)
    except ValueError as error:
        fail(f"{file}: not JSON: {error}", ExitCode.USAGE)
    plan = document.get("sharing_plan") or document.get("tuning_plan") if isinstance(document, dict) else None
    return jsonlib.dumps(document if plan is None else plan).encode()


def _print(status: dict[str, Any], json: bool) -> None:
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
    if rehearsal := status["rehearsal"]:
        served = ", ".join(f"{name} {share:.2%}" for name, share in rehearsal["served"].items())
        text = f"scheduler {rehearsal['scheduler']}; of the last {rehearsal['requests']:,} requests in time: {served}"
        out.print(rehearsal["error"] or text, markup=False)
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
                stage["stage"], share["device"], f"{share['percent']:g}%", f"{share['planned_percent']:g}%",
                shadow if share["shadow_percent"] else "-", requests, f"{stage['planned_rate']:.0f}",
                f"{stage['slo_ns'] / 1e6:g}", f"{stage['predicted_ns'] / 1e6:.1f}",
                f"{p99_ns / 1e6:.1f}" if p99_ns is not None else "-",
                f"{stage['beyond'] / requests:.1%}" if requests else "-", stage["state"],
            )  # fmt: skip
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
