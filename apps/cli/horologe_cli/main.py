"""The `horologe` command. Each command imports its dependencies when it runs, so that `--help` stays fast."""

from __future__ import annotations

from importlib.metadata import entry_points

import typer

from horologe_cli.commands import keys, machine
from horologe_cli.commands.measuring import bench, measure
from horologe_cli.commands.planning import plan_commands
from horologe_cli.commands.serving import (
    application_commands,
    demo,
    import_commands,
    model_commands,
    pipeline_commands,
    predict,
    up,
    version_commands,
)
from horologe_cli.commands.simulating import explain, simulation

COMMANDS_GROUP = "horologe.commands"
"""Entry point group of commands that other distributions add, for example `horologe experiment`."""

app = typer.Typer(
    name="horologe",
    help="Serve neural networks with predictable latency.",
    epilog="Start with `horologe demo`. Or run `horologe up`, and `horologe models` in a second terminal.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for command in (
    up.up,
    demo.demo,
    predict.predict,
    model_commands.load,
    model_commands.unload,
    model_commands.status,
    measure.measure,
    bench.bench,
    simulation.sim,
    simulation.replay,
    explain.explain,
    machine.doctor,
    keys.keys,
):
    app.command()(command)
for entry_point in entry_points(group=COMMANDS_GROUP):
    app.command(entry_point.name)(entry_point.load())
app.add_typer(application_commands.app, name="application")
app.add_typer(version_commands.app, name="models")
app.add_typer(import_commands.app, name="import")
app.add_typer(pipeline_commands.app, name="pipeline")
app.add_typer(plan_commands.app, name="plan")


@app.callback(invoke_without_command=True)
def root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    """Serve neural networks with predictable latency."""
    if version:
        from importlib.metadata import version as version_of

        typer.echo(version_of("horologe"))
        raise typer.Exit


def main() -> None:
    try:
        app()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:
        raise SystemExit(141) from None


if __name__ == "__main__":
    main()
