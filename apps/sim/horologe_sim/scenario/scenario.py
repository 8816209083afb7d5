"""Scenario files: `read_scenario` reads models, workers, settings, load and faults; `run_scenario` simulates them.

Durations and sizes are text with a unit ("5ms", "16GiB"). The tables `[frontend]`, `[selector]`, `[controller]`,
`[worker]` and `[profiler]` hold the settings of the services.
"""

from __future__ import annotations

import csv
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from horologe_common.applications import Application, check_application
from horologe_common.clock import ms, s
from horologe_common.interference.colocation import SharedDevice
from horologe_common.models import ModelSpec, Profile, TensorSpec
from horologe_common.service.settings import SettingsError
from horologe_common.status import InvalidInput
from horologe_common.wire import ModelReport
from horologe_controller.settings import ControllerSettings
from horologe_frontend.settings import FrontendSettings
from horologe_gpu_worker.repository.manifest_fields import EmulatedSharing
from horologe_gpu_worker.repository.model_spec import BATCH_SIZES
from horologe_gpu_worker.runtimes.emulated import co_located_model
from horologe_gpu_worker.settings import WorkerSettings
from horologe_profiler.settings import ProfilerSettings
from horologe_selector.drivers.pipeline_folder import read_pipelines
from horologe_selector.settings import SelectorSettings
from horologe_sim.engine.network import NetworkSettings
from horologe_sim.engine.noise import Noise
from horologe_sim.engine.number_types import (
    Duration,
    Fraction,
    LoadDuration,
    Megabytes,
    Milliseconds,
    Name,
    Number,
    Percent,
    Positive,
    PositiveMilliseconds,
)
from horologe_sim.engine.simulated_device import SimModel
from horologe_sim.engine.simulated_faults import Fault
from horologe_sim.engine.traceable_inputs import LABEL, Skill
from horologe_sim.scenario.table_reading import convert_table, read_table
from horologe_sim.scenario.workload import LoadPhase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from horologe_common.core.hosting import CoreObserver
    from horologe_common.interference.colocation import CoLocatedModel, DeviceActivity
    from horologe_selector.driver import PipelineDefinition
    from horologe_sim.report.report import Report

MIB = 1 << 20
CATALOGUE_SIZES = (1, 2, 4, 8, 16)
EXAMPLES = Path(__file__).parent / "examples"


class ModelEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[[models]]`: a model, or `count` copies `name-0`, `name-1`, ... Times as in `[emulated]` of a model.toml."""

    name: Name
    exec_ms: dict[Positive, PositiveMilliseconds] = {}
    """Execution time by batch size. The keys are the batch sizes of the model."""
    count: Positive = 1
    load_ms: Milliseconds = 0.0
    input_ms: Milliseconds = 0.0
    output_ms: Milliseconds = 0.0
    weights_mb: Megabytes = 16.0
    slo_ns: Duration = 0
    cache: bool = False
    echo: bool = False
    """Outputs repeat the inputs, and clients check them."""
    accuracy: Fraction = 0.0
    """Share of correct labels of a classifier with ten classes; clients know the true labels. 0: not a classifier."""
    alike: Fraction = 0.5
    """Share of inputs for which all classifiers are right or wrong together."""
    noise: Noise | None = None
    """Noise of its execution times. None: the noise of the scenario."""
    workers: tuple[Number, ...] = ()
    """Numbers of the workers that serve the model. Empty: all workers."""
    sharing: EmulatedSharing | None = None
    """Times by the share of a device and its neighbours, as in `[emulated.sharing]`, instead of `exec_ms`."""
    batch_sizes: tuple[Positive, ...] = BATCH_SIZES
    """Batch sizes of a model with `sharing`."""
    items: Number = 0
    """Items of each of its streams; `exec_ms` then has the times of a later step (1) and of the first one (2). 0: it
    does not stream."""
    first_item_ns: Duration = 0
    gap_ns: Duration = 0
    """Deadlines of the items."""
    base_ms: Milliseconds = 0.0
    """With execution times of requests (`Scenario.requests`): time of a batch without its rows."""

    def names(self) -> list[str]:
        """Return the names of its copies."""
        return [self.name] if self.count == 1 else [f"{self.name}-{number}" for number in range(self.count)]


class ShareEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[[shares]]`: the share of a device that a worker is. Workers with shares of one device are neighbours."""

    device: str
    percent: Percent = 100.0


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All inputs of a simulation."""

    models: tuple[ModelEntry, ...] = ()
    load: tuple[LoadPhase, ...] = ()
    name: str = "scenario"
    description: str = ""
    seed: Number = 0
    duration_ns: LoadDuration = s(10)
    warmup_ns: Duration = 0
    """Start of the load, whose requests are not counted."""
    settle_ns: Duration = s(1)
    """Time before the load, in which workers register and load models into free pages."""
    path: Literal["whole", "direct"] = "whole"
    """whole: client, frontend, selector, controller, workers. direct: only controller and workers, which is faster."""
    workers: Positive = 1
    shares: tuple[ShareEntry, ...] = ()
    """Shares of the first workers. Every other worker has a device to itself."""
    wire: bool = False
    """Encode and decode every packet, as sockets do. Slower."""
    patience_ns: Duration = ms(200)
    """Client timeout, after deadline and grace."""
    clocks_ns: dict[str, int] = {}
    """Processes on separate hosts: clock offset to the other hosts."""
    noise: Noise = Noise()
    network: NetworkSettings = NetworkSettings()
    frontend: FrontendSettings = FrontendSettings()
    selector: SelectorSettings = SelectorSettings()
    controller: ControllerSettings = ControllerSettings()
    worker: WorkerSettings = WorkerSettings()
    profiler: ProfilerSettings | None = None
    """None: no profiler. Only with `path = "whole"`, because otherwise no service but the workers gets inputs."""
    faults: tuple[Fault, ...] = ()
    applications: tuple[Application, ...] = ()
    """Applications that exist from the start. Only with `path = "whole"`."""
    requests: str = ""
    """CSV file with a line for each request, instead of `load` (`comparison/request_file.py`)."""
    slo_ns: Duration = ms(100)
    """With `requests`: SLO of models without their own."""
    pipelines: str = ""
    """Folder of pipelines. Loads can name them among `models`. Only with `path = "whole"`."""

    def sim_models(self, worker: int | None = None, activity: DeviceActivity | None = None) -> dict[str, SimModel]:
        """Return the models by key `name/version`, of all workers or of one.

        `activity`: the worker's view of its device, for models with `sharing`. None: it is alone there.
        """
        percent = self.shares[worker].percent if worker is not None and worker < len(self.shares) else 100.0
        return {
            model.report.spec.key: model
            for entry in self.models
            if worker is None or not entry.workers or worker in entry.workers
            for model in _copies(entry, percent, activity)
        }

    def signatures(self) -> dict[str, ModelSpec]:
        """Return the specification of each model and application. Raises InvalidInput for an invalid one."""
        specs = {model.report.spec.name: model.report.spec for model in self.sim_models().values()}
        specs |= {definition.spec.name: definition.spec for definition in self.pipeline_definitions()}
        for application in self.applications:
            check_application(application)
            if application.name in specs:
                raise InvalidInput(f"applications: got {application.name!r}, which is a model or another application")
            names = [name.partition("/")[0] for name in application.models]
            if unknown := [name for name in names if name not in specs]:
                raise InvalidInput(f"applications: {application.name}: models: got {unknown[0]!r}, wanted a model")
            specs[application.name] = msgspec.structs.replace(specs[names[0]], slo_ns=ms(application.slo_ms))
        for load in self.load:
            names = [application.name for application in self.applications]
            if load.application and (load.application not in specs or self.path == "direct"):
                raise InvalidInput(
                    f"load.application: got {load.application!r}, wanted one of "
                    f'{", ".join(names) or "applications"}, and path = "whole"'
                )
        return specs

    def pipeline_definitions(self) -> tuple[PipelineDefinition, ...]:
        """Return the servable pipelines."""
        definitions = read_pipelines(Path(self.pipelines)) if self.pipelines else ()
        return tuple(definition for definition in definitions if not definition.reason)

    def entry_names(self) -> dict[str, str]:
        """Return the name of the entry of each model."""
        names = {model.report.spec.name: entry.name for entry in self.models for model in _copies(entry)}
        return names | {definition.spec.name: definition.spec.name for definition in self.pipeline_definitions()}


def read_scenario(path: str | Path) -> Scenario:
    """Read a TOML file, or an example by name (`example_names()`). Raises SettingsError."""
    file = Path(path)
    if file.suffix == ".csv":
        wanted = "wanted a TOML file; --requests, --trace and --counts read CSV files"
        raise SettingsError(f"scenario: got {str(path)!r}, {wanted}")
    if not file.exists() and (example := EXAMPLES / f"{path}.toml").exists():
        file = example
    where = f"scenario {path}"
    try:
        table = read_table(where, file)
    except FileNotFoundError:
        examples = ", ".join(example_names())
        raise SettingsError(f"scenario: got {str(path)!r}, wanted a TOML file or an example: {examples}") from None
    except OSError as error:
        raise SettingsError(f"{where}: {error.strerror}") from error
    scenario = convert_table(where, {"name": file.stem, **table}, Scenario)
    requests = str(file.parent / scenario.requests) if scenario.requests else ""
    return msgspec.structs.replace(scenario, models=fill_catalogue(scenario.models), requests=requests)


def fill_catalogue(entries: Iterable[ModelEntry]) -> tuple[ModelEntry, ...]:
    """Return the entries. Those without times get the times and weights of the catalogue model of their name."""
    catalogue, filled = read_catalogue(), []
    for entry in entries:
        if not entry.exec_ms and entry.sharing is None and (row := catalogue.get(entry.name)):
            entry = msgspec.structs.replace(
                entry, exec_ms=row.exec_ms, load_ms=entry.load_ms or row.load_ms, weights_mb=row.weights_mb
            )
        filled.append(entry)
    return tuple(filled)


def read_catalogue() -> dict[str, ModelEntry]:
    """Return the 64 models of Clockwork's appendix A by name, with the execution times of a V100."""
    text = resources.files("horologe_sim").joinpath("data", "clockwork_models.csv").read_text()
    return {
        row["model"]: ModelEntry(
            row["model"],
            {size: float(row[f"exec_b{size}_ms"]) for size in CATALOGUE_SIZES},
            load_ms=float(row["transfer_ms"]),
            weights_mb=float(row["weights_MB"]),
        )
        for row in csv.DictReader(text.splitlines())
    }


def example_names() -> list[str]:
    """Return the names of the scenarios in this package."""
    return sorted(path.stem for path in EXAMPLES.glob("*.toml"))


def run_scenario(
    scenario: Scenario,
    progress: Callable[[float], None] | None = None,
    observer: CoreObserver | None = None,
) -> Report:
    """Simulate a scenario and return its report. `progress` is called with the finished share, from 0 to 1.

    `observer` sees the messages of all cores.
    """
    from horologe_sim.scenario.simulated_cluster import SimulatedCluster

    if scenario.requests:
        raise SettingsError(f"requests: got {scenario.requests}, wanted [[load]]: only --scheduler plays such a file")
    cluster = SimulatedCluster(scenario)
    cluster.world.observer = observer
    cluster.run(progress)
    return cluster.report()


def _copies(entry: ModelEntry, percent: float = 100.0, activity: DeviceActivity | None = None) -> list[SimModel]:
    if not entry.exec_ms and entry.sharing is None:
        wanted = "wanted one for each batch size, or the name of a catalogue model (horologe sim --list-models)"
        raise SettingsError(f"model {entry.name}: exec_ms: got no times, {wanted}")
    sizes = tuple(sorted(entry.exec_ms)) if entry.sharing is None else entry.batch_sizes
    datatype = "UINT64" if entry.echo or entry.accuracy else "FP32"
    output = LABEL if entry.accuracy else TensorSpec("y", datatype, (-1, 1))
    inputs, size = (TensorSpec("x", datatype, (-1, 1)),), round(entry.weights_mb * MIB)
    spec = ModelSpec(entry.name, "1", "emulated", inputs, (output,), sizes, weights_bytes=size, cache=entry.cache)
    if entry.items:
        limits = {"first_ns": entry.first_item_ns, "gap_ns": entry.gap_ns}
        spec = msgspec.structs.replace(spec, streams=True, batched=False, **limits)
    specs = [msgspec.structs.replace(spec, name=name, content_hash=name, slo_ns=entry.slo_ns) for name in entry.names()]
    return [_sim_model(entry, spec, percent, activity) for spec in specs]


def _sim_model(entry: ModelEntry, spec: ModelSpec, percent: float, activity: DeviceActivity | None) -> SimModel:
    skill = Skill(entry.accuracy, entry.alike) if entry.accuracy else None
    times: CoLocatedModel | None = None
    if entry.sharing is not None:
        activity = activity or SharedDevice().join()
        times = co_located_model(f"model {entry.name}", spec.name, entry.sharing, percent, activity)
    exec_ns = {size: times.solo_ns(size) if times else ms(entry.exec_ms[size]) for size in spec.batch_sizes}
    report = ModelReport(spec, Profile(exec_ns, max(1, ms(entry.load_ms))))
    transfers_ns = ms(entry.input_ms), ms(entry.output_ms)
    return SimModel(report, *transfers_ns, skill=skill, items=entry.items, noise=entry.noise, co_located=times)
