"""The drivers of a simulated selector: the functions of a folder of pipelines, executed in virtual time.

Their coroutines run in the loop of the real drivers (`DriverRuns`), inside the simulated process of the selector.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from horologe_common.clock import ms
from horologe_common.status import HorologeError
from horologe_common.wire import DriverReady
from horologe_selector.driver import DriverEnded, KillDriver, PipelinesRead, driver_address
from horologe_selector.drivers.driver_runs import DriverRuns, load_driver
from horologe_selector.drivers.pipeline_folder import read_pipelines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_selector.driver import PipelineDefinition
    from horologe_sim.engine.simulated_process import Process

STEP_NS = ms(0.1)
"""Time from a message of the selector to the driver's reply: a round trip between two processes of one machine."""
READ_NS = ms(10)
"""Time from the start of the selector until it has read its folder of pipelines."""
START_NS = ms(100)
"""Time from the start of a driver's process until it has loaded the driver function."""


class SimulatedDrivers:
    """All drivers of one incarnation of a selector at `core`."""

    def __init__(self, process: Process, core: str, folder: str, calls: int) -> None:
        self._process = process
        self._core = core
        self._calls = calls
        self._drivers: dict[str, SimulatedDriver] = {}
        definitions = read_pipelines(Path(folder))
        for definition in definitions:
            name = definition.spec.name
            driver = self._drivers[name] = SimulatedDriver(process, core, definition, calls)
            process.attach(driver_address(name), driver.deliver)
        process.schedule(process.now_ns + READ_NS, self._start, definitions)

    def kill(self, name: str) -> None:
        """End the process of a driver, as `kill -9` does."""
        self._drivers[name].kill("SIGKILL")

    def _start(self, definitions: tuple[PipelineDefinition, ...]) -> None:
        self._process.post("drivers", self._core, PipelinesRead(definitions))
        for driver in self._drivers.values():
            driver.start_process()


class SimulatedDriver:
    """One driver and its restarts."""

    def __init__(self, process: Process, core: str, definition: PipelineDefinition, calls: int) -> None:
        self._process = process
        self._core = core
        self._definition = definition
        self._calls = calls
        self._address = driver_address(definition.spec.name)
        self._runs: DriverRuns | None = None
        self._step_due = False
        self._wakeup_ns = 0

    def start_process(self) -> None:
        """Start a process, which is ready after `START_NS`. A pipeline that cannot be served has none."""
        if not self._definition.reason:
            self._process.schedule(self._process.now_ns + START_NS, self._load)

    def _load(self) -> None:
        """Load the driver function and report that it is ready."""
        if self._runs is not None:
            return  # it was killed before it was ready, so it was started twice
        try:
            function = load_driver(Path(self._definition.file))
        except HorologeError as error:
            self._process.post(self._address, self._core, DriverReady(error.reason))
            return
        self._runs = DriverRuns(function, self._calls, lambda: self._process.now_ns)
        self._process.post(self._address, self._core, DriverReady())

    def kill(self, reason: str) -> None:
        """Drop all runs, and start again."""
        self._runs = None
        name = self._definition.spec.name
        self._process.post(self._address, self._core, DriverEnded(name, reason))
        self.start_process()

    def deliver(self, message: Any, buffers: Sequence[Buffer]) -> None:
        """Handle a message of the core."""
        if isinstance(message, KillDriver):
            self.kill(message.reason)
        elif self._runs is not None:
            self._runs.handle(message, buffers)
            self._schedule_step(self._process.now_ns + STEP_NS)

    def _schedule_step(self, at_ns: int) -> None:
        if not self._step_due:
            self._step_due = True
            self._process.schedule(at_ns, self._step)

    def _step(self) -> None:
        self._step_due = False
        if (runs := self._runs) is None:
            return
        runs.step()
        out, runs.out = runs.out, []
        for message, buffers in out:
            self._process.post(self._address, self._core, message, buffers)
        at_ns = runs.wakeup_ns()
        if at_ns is not None and at_ns != self._wakeup_ns:
            self._wakeup_ns = at_ns
            self._process.schedule(max(at_ns, self._process.now_ns + 1), self._step)
