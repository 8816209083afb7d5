"""A scenario file: models, workers, settings, load, faults, seed; `load` reads one, `run` plays it.

Durations are text with a unit ("5ms"), as are sizes ("16GiB"). The tables `[frontend]`, `[selector]`, `[controller]`,
`[worker]` and `[profiler]` are the services' own settings.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from horologe_common.applications import Application, check_application
from horologe_common.clock import ms, s
from horologe_common.models import ModelSpec, Profile, TensorSpec
from horologe_common.service.settings import DURATIONS, SIZES, SettingsError, parse_quantity
from horologe_common.status import HorologeError, InvalidInput
from horologe_common.wire import ModelReport
from horologe_controller.settings import ControllerSettings
from horologe_frontend.settings import FrontendSettings
from horologe_gpu_worker.settings import WorkerSettings
from horologe_profiler.settings import ProfilerSettings
from horologe_selector.settings import SelectorSettings
from horologe_sim.engine.network import NetworkSettings
from horologe_sim.engine.noise import NOISES, Noise
from horologe_sim.engine.traceable_inputs import LABEL, Skill
from horologe_sim.engine.virtual_worker import SimModel
from horologe_sim.scenario.workload import LoadPhase

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_common.core.hosting import CoreObserver
    from horologe_sim.report.report import Report

S = TypeVar("S", bound=msgspec.Struct)
MIB = 1 << 20
EXAMPLES = Path(__file__).parent / "examples"


class ModelEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[[models]]`: one model, or `count` copies `name-0`, `name-1`... Times as in `[emulated]` of a model.toml."""

    name: str
    exec_ms: dict[int, float]
    """By batch size; these are the sizes."""
    count: int = 1
    load_ms: float = 0.0
    input_ms: float = 0.0
    output_ms: float = 0.0
    weights_mb: float = 16.0
    slo_ns: int = 0
    cache: bool = False
    echo: bool = False
    """Outputs give the inputs back, and clients check them."""
    accuracy: float = 0.0
    """Outputs are labels of ten classes, this share of them right; clients know which. 0: there are none."""
    alike: float = 0.5
    """Share of inputs on which models with an accuracy are right or wrong together."""
    noise: Noise | None = None
    """Of its execution times; None: as on the device."""
    workers: tuple[int, ...] = ()
    """Numbers of the workers that have it; none: all."""


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[[faults]]`: what happens to a process, counted from the beginning of the load."""

    at_ns: int
    process: str
    """edge, frontend, selector, controller, profiler, client or worker/N."""
    kind: Literal["kill", "stall", "slow", "cut"] = "kill"
    restart_ns: int = s(1)
    """kill: it is back after this long; 0: it stays away."""
    for_ns: int = ms(100)
    """stall, cut: for how long."""
    factor: float = 3.0
    """slow: from now on a worker's device takes so many times as long."""
    void: bool = False
    """kill: packets that it had sent and that are under way are lost too."""


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that a run depends on."""

    models: tuple[ModelEntry, ...]
    load: tuple[LoadPhase, ...]
    name: str = "scenario"
    description: str = ""
    seed: int = 0
    duration_ns: int = s(10)
    warmup_ns: int = 0
    """At the beginning of the load; what is sent in it is not counted."""
    settle_ns: int = s(1)
    """Before the load: workers register, models are loaded into free pages."""
    path: Literal["whole", "direct"] = "whole"
    """whole: client, frontend, selector, controller, workers; direct: the controller and workers alone (faster)."""
    workers: int = 1
    wire: bool = False
    """Encode and decode every packet, as between sockets. Slower."""
    patience_ns: int = ms(50)
    """How long after deadline and grace a client itself gives up."""
    clocks_ns: dict[str, int] = {}
    """Processes on hosts of their own: what their clocks are ahead of the others'."""
    noise: Noise = Noise()
    network: NetworkSettings = NetworkSettings()
    frontend: FrontendSettings = FrontendSettings()
    selector: SelectorSettings = SelectorSettings()
    controller: ControllerSettings = ControllerSettings()
    worker: WorkerSettings = WorkerSettings()
    profiler: ProfilerSettings | None = None
    """None: there is none. Only on the whole path: clients of the controller show nobody their inputs."""
    faults: tuple[Fault, ...] = ()
    applications: tuple[Application, ...] = ()
    """Declared from the beginning. Only on the whole path."""

    def sim_models(self, worker: int | None = None) -> dict[str, SimModel]:
        """By key `name/version`; of all workers, or of one."""
        return {
            model.report.spec.key: model
            for entry in self.models
            if worker is None or not entry.workers or worker in entry.workers
            for model in _copies(entry)
        }

    def signatures(self) -> dict[str, ModelSpec]:
        """What requests of each model and application look like. Raises `InvalidInput` for what cannot be."""
        specs = {model.report.spec.name: model.report.spec for model in self.sim_models().values()}
        for application in self.applications:
            check_application(application)
            if application.name in specs:
                raise InvalidInput(f"applications: got {application.name!r}, which is a model or another application")
            names = [name.partition("/")[0] for name in application.models]
            if unknown := [name for name in names if name not in specs]:
                raise InvalidInput(f"applications: {application.name}: models: got {unknown[0]!r}, which is none")
            specs[application.name] = msgspec.structs.replace(specs[names[0]], slo_ns=ms(application.slo_ms))
        for load in self.load:
            if load.application and (load.application not in specs or self.path == "direct"):
                raise InvalidInput(
                    f"load.application: got {load.application!r}, wanted one of "
                    f'{", ".join(one.name for one in self.applications) or "applications"}, and path = "whole"'
                )
        return specs

    def entry_names(self) -> dict[str, str]:
        """Model name -> the name of its entry."""
        return {model.report.spec.name: entry.name for entry in self.models for model in _copies(entry)}


def read_scenario(path: str | Path) -> Scenario:
    """Read a scenario: a TOML file, or the name of an example (`examples()`). Raises `SettingsError`."""
    file = Path(path)
    if not file.exists() and (known := EXAMPLES / f"{path}.toml").exists():
        file = known
    try:
        table = tomllib.loads(file.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"scenario {path}: {error}") from error
    try:
        return msgspec.convert({"name": file.stem, **read_units(f"scenario {path}", table)}, Scenario, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(f"scenario {path}: {error}") from error


def example_names() -> list[str]:
    """Scenarios that come with the package."""
    return sorted(path.stem for path in EXAMPLES.glob("*.toml"))


def run_scenario(
    scenario: Scenario,
    seed: int | None = None,
    progress: Callable[[float], None] | None = None,
    timeline: Callable[[int], CoreObserver] | None = None,
) -> Report:
    """Play it. `progress` is told from time to time how far it is, from 0 to 1.

    `timeline` makes a tap on all cores, given when the load begins.
    """
    from horologe_sim.scenario.simulated_cluster import SimulatedCluster

    house = SimulatedCluster(scenario if seed is None else msgspec.structs.replace(scenario, seed=seed))
    if timeline:
        house.world.observer = timeline(house.begin_ns)
    house.run(progress)
    return house.report()


def read_units(where: str, value: Any, key: str = "") -> Any:
    """The table with texts of durations and sizes as numbers, and the name of a noise as what it means.

    Keys may be written without `_ns` and `_bytes`. Raises `SettingsError`.
    """
    if isinstance(value, dict):
        return {
            _field_name(name): read_units(f"{where}: {name}", one, _field_name(name)) for name, one in value.items()
        }
    if isinstance(value, list):
        return [read_units(where, one, key) for one in value]
    if isinstance(value, str) and key.endswith("_ns"):
        return parse_quantity(where, value, DURATIONS)
    if isinstance(value, str) and key.endswith("_bytes"):
        return parse_quantity(where, value, SIZES)
    if isinstance(value, str) and key == "noise":
        if value not in NOISES:
            raise SettingsError(f"{where}: got {value!r}, wanted one of {', '.join(NOISES)}, or a table")
        return msgspec.to_builtins(NOISES[value])
    return value


FIELD_NAMES = {
    "duration": "duration_ns",
    "warmup": "warmup_ns",
    "settle": "settle_ns",
    "patience": "patience_ns",
    "slo": "slo_ns",
    "at": "at_ns",
    "restart": "restart_ns",
    "for": "for_ns",
    "from": "from_ns",
    "think": "think_ns",
    "every": "every_ns",
    "burst": "burst_ns",
    "times": "times_ns",
    "clocks": "clocks_ns",
    "cancel_after": "cancel_ns",
    "turn": "turn_ns",
    "delay": "delay_ns",
    "resend": "resend_ns",
    "step": "step_ns",
    "minute": "minute_ns",
    "jitter": "jitter_ns",
    "notice": "notice_ns",
    "spike": "spike_ns",
}
"""What people write -> the field."""


def _field_name(name: str) -> str:
    return FIELD_NAMES.get(name, name)


def _copies(entry: ModelEntry) -> list[SimModel]:
    if not entry.exec_ms:
        raise HorologeError(f"model {entry.name}: exec_ms: got no times, wanted one for each batch size")
    names = [entry.name] if entry.count == 1 else [f"{entry.name}-{number}" for number in range(entry.count)]
    sizes = tuple(sorted(entry.exec_ms))
    profile = Profile({size: ms(entry.exec_ms[size]) for size in sizes}, max(1, ms(entry.load_ms)))
    datatype = "UINT64" if entry.echo or entry.accuracy else "FP32"
    output = LABEL if entry.accuracy else TensorSpec("y", datatype, (-1, 1))
    skill = Skill(entry.accuracy, entry.alike) if entry.accuracy else None
    specs = [
        ModelSpec(
            name,
            "1",
            "emulated",
            (TensorSpec("x", datatype, (-1, 1)),),
            (output,),
            sizes,
            slo_ns=entry.slo_ns,
            weights_bytes=round(entry.weights_mb * MIB),
            content_hash=name,
            cache=entry.cache,
        )
        for name in names
    ]
    times = ms(entry.input_ms), ms(entry.output_ms)
    return [SimModel(ModelReport(spec, profile), *times, skill=skill, noise=entry.noise) for spec in specs]
