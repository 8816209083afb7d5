"""The simulated cluster of a scenario: processes with the real cores, and one client."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.interference.colocation import SharedDevice
from horologe_controller.core.controller import Controller
from horologe_frontend.core.frontend import Frontend
from horologe_frontend.digest import digest
from horologe_gpu_worker.core.worker import Worker
from horologe_profiler.core.profiler import RULES, Profiler
from horologe_selector.core.applications import application_registry
from horologe_selector.core.selector import Selector
from horologe_selector.driver import CALLS_LIMIT
from horologe_selector.store import RecordChange
from horologe_selector.stores.memory import MemoryStore
from horologe_selector.stores.store_writer import execute_messages
from horologe_sim.engine.network import Network
from horologe_sim.engine.simulated_clients import BEST_EFFORT_NS, FrontendClient, SimulatedClient, Submitter
from horologe_sim.engine.simulated_drivers import SimulatedDrivers
from horologe_sim.engine.simulated_faults import schedule_faults
from horologe_sim.engine.virtual_worker import Meter, WorkerDevice
from horologe_sim.engine.world import World
from horologe_sim.report import report as reports
from horologe_sim.report.tally import Tally
from horologe_sim.scenario.workload import ScenarioLoad

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Buffer, Core
    from horologe_common.interference.colocation import LocalShare
    from horologe_profiler.core.measurements import ProfilerState
    from horologe_profiler.core.profiling_rules import ProfilingRules
    from horologe_sim.engine.simulated_process import Process
    from horologe_sim.report.report import Report
    from horologe_sim.scenario.scenario import Scenario

DRIVER = "driver/"
PROGRESS_STEPS = 200
"""Number of progress reports of a run."""


class SimulatedCluster:
    """Simulates a scenario: the constructor builds the processes, `run` runs them, `report` returns the result."""

    def __init__(self, scenario: Scenario, profiling: ProfilingRules = RULES) -> None:
        self.scenario = scenario
        self._profiling = profiling
        self.models = scenario.sim_models()
        self.signatures = scenario.signatures()
        self.tally = Tally()
        self.world = World(Network(scenario.network, scenario.seed), wire=scenario.wire)
        self.events, self.stall, self.cut = self.world.events, self.world.stall, self.world.cut
        self.meters: dict[str, Meter] = {}
        self.devices: dict[str, WorkerDevice] = {}
        self.shared_devices: dict[str, SharedDevice] = {}
        """Devices of `scenario.shares` by name."""
        self._local_shares: dict[int, LocalShare] = {}
        """Number of a worker -> the share of its current incarnation."""
        self.store = MemoryStore()
        """Store of the selector. It survives restarts of the selector."""
        self.profiler_state: tuple[int, ProfilerState] | None = None
        """State that the profiler has saved, and the time of saving. It survives restarts of the profiler."""
        self.begin_ns = self.world.now_ns + scenario.settle_ns
        self.end_ns = self.begin_ns + scenario.duration_ns
        self.drivers: SimulatedDrivers | None = None
        """Drivers of the current selector."""
        self._pipelines = [definition.spec.name for definition in scenario.pipeline_definitions()]
        names = [model.report.spec.name for model in self.models.values()] + self._pipelines
        self.workload = ScenarioLoad(scenario.load, names, scenario.seed, scenario.duration_ns)
        self._add_services()
        for number in range(scenario.workers):
            name = f"worker/{number}"
            self.meters[name] = Meter()
            self._add(name, self._worker(number))
        for application in scenario.applications:
            record = msgspec.msgpack.encode(application_registry.StoredDeclarations(1, [application]))
            self.store.write_changes([RecordChange(f"{application_registry.FAMILY}\n{application.name}", 0, record)])
        schedule_faults(self, scenario.faults, self.begin_ns)

    @property
    def client(self) -> SimulatedClient:
        """Return the client of the current client process."""
        cores = self.world.processes["edge" if self._fused_submitter else "client"].cores.values()
        return next(core for core in cores if isinstance(core, SimulatedClient))

    def run(self, progress: Callable[[float], None] | None = None) -> None:
        """Start all processes, send the load, and wait until every request has ended."""
        for name in self.world.processes:
            self.world.start(name)
        begin_ns = self.world.now_ns
        for step in range(1, PROGRESS_STEPS + 1):
            self.world.run(begin_ns + (self.end_ns - begin_ns) * step // PROGRESS_STEPS)
            if progress:
                progress(step / PROGRESS_STEPS)
        limit_ns = self.end_ns + BEST_EFFORT_NS + 2 * self._client_timeout_ns()
        while self.tally.sent_total > self.tally.ended_total and self.world.now_ns < limit_ns:
            self.world.run(self.world.now_ns + self.scenario.patience_ns)

    def report(self) -> Report:
        """Return the report of the run."""
        scenario, tally = self.scenario, self.tally
        seconds = (scenario.duration_ns - scenario.warmup_ns) / 1e9
        busy_s = (self.end_ns - self.begin_ns) / 1e9
        shares = scenario.worker.shares
        workers = {name: reports.summarize_worker(meter, shares, busy_s) for name, meter in self.meters.items()}
        batches = reports.count_batch_sizes(self.meters.values())
        applications = {name: reports.summarize_application(quality) for name, quality in tally.qualities.items()}
        run = scenario.name, scenario.seed, scenario.controller.scheduler, scenario.path, seconds
        requests = reports.summarize_by_model(tally, scenario.entry_names(), seconds)
        clients = {name: reports.summarize_requests([counts], seconds) for name, counts in tally.clients.items()}
        counts = self.world.packets, len(tally.strays), len(tally.swapped)
        return reports.Report(*run, *requests, workers, batches, *counts, tally.overdue_ns / 1e6, applications, clients)

    def is_loaded(self, name: str) -> bool:
        """Return whether each model of the application (or the one model) is loaded on some device."""
        if name in self._pipelines:
            return True
        models = next((app.models for app in self.scenario.applications if app.name == name), (name,))
        return all(
            any(device.holds(f"{model.partition('/')[0]}/1") for device in self.devices.values()) for model in models
        )

    @property
    def _fused_submitter(self) -> bool:
        return self.scenario.path == "direct" and not self.scenario.network.split

    def _add_services(self) -> None:
        makers = {"frontend": self._frontend, "selector": self._selector, "controller": self._controller}
        if self.scenario.path == "direct":
            makers = {"submitter": self._submitter, "controller": self._controller}
        if self.scenario.network.split:
            for name, make in makers.items():
                self._add("client" if name == "submitter" else name, _single(make))
        else:
            self._add("edge", lambda process: [make(process) for make in makers.values()])
        if self.scenario.profiler:
            self._add("profiler", _single(self._profiler))
        if self.scenario.path == "whole":
            self._add("client", lambda process: [self._client(process)])

    def _add(self, name: str, make: Callable[[Process], Sequence[Core]]) -> None:
        clock_ns = self.scenario.clocks_ns.get(name, 0)
        self.world.add(name, make, host=name if clock_ns else "host", clock_ns=clock_ns)

    def _frontend(self, process: Process) -> Core:
        return Frontend(process.address("frontend"), self.scenario.frontend, digest)

    def _selector(self, process: Process) -> Core:
        settings = msgspec.structs.replace(self.scenario.selector, pipelines=self.scenario.pipelines)
        core = Selector(process.address("selector"), settings, random.Random(self.scenario.seed))

        def execute(message: Any, buffers: Sequence[Buffer]) -> None:
            for reply in execute_messages(self.store, [message]):
                process.post(core.store, core.address, reply)

        process.attach(core.store, execute)
        if self.scenario.pipelines:
            self.drivers = SimulatedDrivers(process, core.address, self.scenario.pipelines, CALLS_LIMIT)
        return core

    def _controller(self, process: Process) -> Core:
        settings = msgspec.structs.replace(self.scenario.controller, workers=self.scenario.workers)
        return Controller(process.address("controller"), settings, process.host)

    def _profiler(self, process: Process) -> Core:
        """Return a profiler that restores the state saved by its predecessor."""
        assert self.scenario.profiler
        core = Profiler(process.address("profiler"), self.scenario.profiler, self._profiling)
        if self.profiler_state is not None:
            saved_ns, state = self.profiler_state
            core.restore(process.now_ns, state, self.world.now_ns - saved_ns)

        def store_state(state: ProfilerState, buffers: Sequence[Buffer]) -> None:
            self.profiler_state = self.world.now_ns, state

        process.attach(core.store, store_state)
        return core

    def _client(self, process: Process) -> Core:
        kind = "http" if any(load.client for load in self.scenario.load) else "client"
        address = f"{kind}/{process.incarnation:08x}"
        return self._load_generator(FrontendClient, process, address)

    def _submitter(self, process: Process) -> Core:
        return self._load_generator(Submitter, process, process.address("selector", "load"))

    def _load_generator(self, kind: type[FrontendClient | Submitter], process: Process, address: str) -> Core:
        begin_ns, timeout_ns = self.begin_ns + process.clock_ns, self._client_timeout_ns()
        self.tally.from_ns = begin_ns + self.scenario.warmup_ns
        return kind(address, self.workload, self.signatures, self.tally, timeout_ns, begin_ns, self.is_loaded)

    def _worker(self, number: int) -> Callable[[Process], Sequence[Core]]:
        def make(process: Process) -> Sequence[Core]:
            address = process.address("worker", str(number))
            seed = [self.scenario.seed, 2, number, process.incarnation]
            models = self.scenario.sim_models(number, self._join_device(number))
            device = WorkerDevice(process, address, models, self.meters[process.name], self.scenario.noise, seed)
            self.devices[process.name] = device
            process.attach(device.lanes, device.deliver)
            settings = msgspec.structs.replace(self.scenario.worker, name=str(number))
            return [Worker(address, settings, [model.report for model in models.values()], device.inline_io)]

        return make

    def _join_device(self, number: int) -> LocalShare | None:
        """Add the worker's share to its device, in place of that of its last incarnation."""
        if number >= len(self.scenario.shares):
            return None
        if number in self._local_shares:
            self._local_shares[number].leave()
        device = self.shared_devices.setdefault(self.scenario.shares[number].device, SharedDevice())
        share = self._local_shares[number] = device.join()
        return share

    def _client_timeout_ns(self) -> int:
        return self.scenario.frontend.grace_ns + self.scenario.patience_ns

    def kill(self, name: str, *, void: bool = False) -> None:
        """Kill a process. A driver restarts by itself."""
        if not name.startswith(DRIVER):
            self.world.kill(name, void=void)
        elif self.drivers is not None:
            self.drivers.kill(name.removeprefix(DRIVER))

    def start(self, name: str) -> None:
        """Start a process that was killed."""
        if not name.startswith(DRIVER):
            self.world.start(name)

    def slow(self, name: str, factor: float) -> None:
        """Multiply all times of a worker's device by `factor` from now on."""
        self.devices[name].slowness = factor


def _single(make: Callable[[Process], Core]) -> Callable[[Process], Sequence[Core]]:
    return lambda process: [make(process)]
