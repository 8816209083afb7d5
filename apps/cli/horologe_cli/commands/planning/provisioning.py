"""`horologe provision`: shares of GPUs for workloads, at the least cost that keeps every SLO."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from horologe_cli import output

if TYPE_CHECKING:
    from horologe_cli.provisioning.provision_report import ProvisionDocument


def provision(
    file: Annotated[Path, typer.Argument(help="TOML file of workloads and GPU types.", metavar="FILE")],
    margin: Annotated[
        float | None, typer.Option(help="Standard deviations of the prediction error to leave room for.")
    ] = None,
    previous: Annotated[
        Path | None, typer.Option("--from", help="Running plan (--json) to change with few moves.", metavar="PLAN")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a figure of the shares and the latencies.")] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Send the plan to the tuner of the running system.")] = False,
    endpoint: output.Endpoint = output.DEFAULT_ENDPOINT,
    keys: output.Keys = "",
    json: output.Json = False,
) -> None:
    """Find the cheapest GPUs and the share of each workload that meet every SLO beside its neighbours.

    \b
    Examples:
      horologe provision workloads.toml --plot shares.png
      horologe provision workloads.toml --json > plan.json
      horologe provision workloads.toml --from plan.json --apply
    """
    from horologe_cli.provisioning.provision_report import provision_text
    from horologe_common.service.settings import SettingsError
    from horologe_planning.provisioning.workloads import ProvisioningError, UnattainableSlo

    try:
        document = _plan(file, margin, previous, plot)
    except UnattainableSlo as error:
        output.fail(str(error))
    except ProvisioningError as error:
        output.fail(str(error), output.ExitCode.USAGE)
    except (SettingsError, OSError) as error:
        output.fail_with(error, endpoint)
    text = provision_text(document)
    if apply:
        _apply(document, endpoint, keys)
        text += "\napplied: `horologe tuner status` shows its shares"
    output.print_result(_builtins(document), text, json)


def _plan(file: Path, margin: float | None, previous: Path | None, plot: Path | None) -> ProvisionDocument:
    """Return the plan of a file, as a change of the previous plan if one is given, with its explanation. Draw it."""
    import msgspec

    from horologe_cli.provisioning.provision_file import read_plan_file, read_problem_file
    from horologe_cli.provisioning.provision_report import ProvisionDocument, draw_shares
    from horologe_planning.provisioning.explanation import explain_plan
    from horologe_planning.provisioning.incremental import update_plan
    from horologe_planning.provisioning.plan_prediction import with_batch_times
    from horologe_planning.provisioning.provisioner import provision as find_plan

    workloads, kinds, options = read_problem_file(file, margin)
    plan = find_plan(workloads, kinds, options)
    moved = new_cost = None
    if previous is not None:
        new_cost, bound = plan.cost_per_hour, plan.cost_bound
        plan, change = update_plan(read_plan_file(previous), workloads, kinds, options)
        plan, moved = msgspec.structs.replace(plan, cost_bound=bound), change.moved
    explanation = explain_plan(plan, workloads, kinds, options)
    if plot:
        draw_shares(plot, plan)
    return ProvisionDocument(with_batch_times(plan, kinds, options.model), explanation, moved, new_cost)


def _apply(document: ProvisionDocument, endpoint: str, keys: str) -> None:
    """Send the plan to the tuner."""
    import msgspec

    body = msgspec.json.encode(document.sharing_plan)
    output.call_server(endpoint, keys, lambda client: client.tune("apply", body))


def _builtins(document: ProvisionDocument) -> dict[str, object]:
    import msgspec

    built: dict[str, object] = msgspec.to_builtins(document, str_keys=True)
    return built
