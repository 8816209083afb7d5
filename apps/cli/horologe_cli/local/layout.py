"""Decides which processes `horologe up` runs on a machine, and which CPUs each of them uses. Pure.

    16 cores            node 0
    0  1  2  3  4  5    6      7     ...  15
    shared CPUs: 4 services, 2 spare          one core for each of 10 workers

Services and background processes use the shared CPUs of the first NUMA node. A worker uses the shared CPUs of its node,
and cores of its own to which its EXEC lanes are pinned. Machines with less than `PINNED_CPUS_MIN` CPUs pin no process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from horologe_common.service.settings import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable

PINNED_CPUS_MIN = 8
"""On fewer CPUs a process that may not use an idle one waits longer than it gains."""
CORES_PER_FRONTEND, FRONTENDS_MAX = 8, 4
"""One core of the controller decides for at most as many requests as four frontends accept (docs/scaling-out.md)."""
CORES_PER_SPARE = 8
"""One shared core for so many: event loops and INPUT and OUTPUT lanes of workers, the profiler, the kernel, clients."""

Core = tuple[int, ...]
"""CPUs of one core: several with simultaneous multithreading."""


class Gpu(NamedTuple):
    """A CUDA device. `node`: its NUMA node, -1 if that is not known."""

    number: int
    node: int = -1


class Machine(NamedTuple):
    """The CPUs that this process may use, and the CUDA devices that models could run on."""

    nodes: tuple[tuple[Core, ...], ...]
    """The cores of each NUMA node, in the order of their numbers."""
    gpus: tuple[Gpu, ...] = ()
    quota: int = 0
    """CPUs of time that a control group grants, rounded up. 0: as many as there are."""

    @property
    def cpus(self) -> int:
        """Return the number of CPUs."""
        return sum(len(core) for node in self.nodes for core in node)

    @property
    def is_pinned(self) -> bool:
        """Return whether processes get CPUs of their own."""
        return self.cpus >= PINNED_CPUS_MIN and not 0 < self.quota < self.cpus

    @property
    def cores(self) -> int:
        """Return the number of cores that do work at once. Small machines count each CPU."""
        return sum(map(len, self.nodes)) if self.is_pinned else min(self.quota or self.cpus, self.cpus)


class Wanted(NamedTuple):
    """Settings that the layout keeps. 0 and None leave the choice to it."""

    workers: int = 0
    frontends: int = 0
    split: bool | None = None
    pin: bool = True


class Placement(NamedTuple):
    """A process and its CPUs. Empty: any CPU."""

    name: str
    cpus: tuple[int, ...] = ()
    exec_cpus: tuple[int, ...] = ()
    """CPUs of the EXEC lanes of a worker, the first share's first."""
    gpu: int | None = None
    """CUDA device of a worker."""


class Layout(NamedTuple):
    """The processes of a machine, without profiler and tuner, which use `background_cpus`."""

    services: tuple[Placement, ...]
    workers: tuple[Placement, ...]
    background_cpus: tuple[int, ...] = ()

    @property
    def frontends(self) -> tuple[str, ...]:
        """Return the names of the processes of frontends; none if the edge has the only one."""
        return tuple(service.name for service in self.services if service.name.startswith("frontend"))


def describe_cpus(cpus: Iterable[int]) -> str:
    """Return numbers of CPUs as in sysfs: `0-3,8`."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


class _Node(NamedTuple):
    shared: tuple[int, ...]
    own: tuple[Core, ...]
    """Cores for workers."""


def plan_layout(machine: Machine, wanted: Wanted) -> Layout:
    """Return the processes that use the machine, as far as `wanted` leaves the choice. Raises SettingsError.

    Without GPUs there is a worker for each core that is neither for a service nor spare, else one for each GPU.
    """
    names = _service_names(machine.cores, wanted)
    nodes = _divide_nodes(machine, len(names)) if machine.is_pinned and wanted.pin else []
    spare = machine.cores // CORES_PER_SPARE
    cores = sum(len(node.own) for node in nodes) or max(1, machine.cores - len(names) - spare)
    workers = wanted.workers or len(machine.gpus) or cores
    if not nodes or workers > cores:
        placed = [Placement(f"worker-{number}") for number in range(workers)]
        return Layout(tuple(map(Placement, names)), _with_gpus(placed, machine.gpus))
    services = tuple(Placement(name, nodes[0].shared) for name in names)
    placed = _place_workers(nodes, _choose_nodes(nodes, workers, machine.gpus))
    return Layout(services, _with_gpus(placed, machine.gpus), nodes[0].shared)


def _service_names(cores: int, wanted: Wanted) -> list[str]:
    """Return the processes of frontend, selector and controller."""
    default = 1 if wanted.split is False else max(1, min(FRONTENDS_MAX, cores // CORES_PER_FRONTEND))
    frontends = wanted.frontends or default
    split = frontends > 1 if wanted.split is None else wanted.split
    if not split:
        if frontends > 1:
            raise SettingsError(f"--frontends: got {frontends} with --no-split, wanted 1")
        return ["edge"]
    names = ["frontend"] if frontends == 1 else [f"frontend-{number}" for number in range(frontends)]
    return [*names, "selector", "controller"]


def _divide_nodes(machine: Machine, services: int) -> list[_Node]:
    """Return the shared CPUs of each node and its cores for workers. All services are in the first node."""
    nodes = []
    for number, cores in enumerate(machine.nodes):
        count = max(1, len(cores) // CORES_PER_SPARE) + (0 if number else services)
        nodes.append(_Node(tuple(cpu for core in cores[:count] for cpu in core), cores[count:]))
    return nodes


def _choose_nodes(nodes: list[_Node], workers: int, gpus: tuple[Gpu, ...]) -> list[int]:
    """Return the node of each worker: of its GPU, else the one with most cores per worker."""
    chosen: list[int] = []
    for number in range(workers):
        near = gpus[number].node if number < len(gpus) else -1
        room = [len(node.own) / (chosen.count(index) + 1) for index, node in enumerate(nodes)]
        fits = 0 <= near < len(nodes) and room[near] >= 1
        chosen.append(near if fits else room.index(max(room)))
    return chosen


def _place_workers(nodes: list[_Node], chosen: list[int]) -> list[Placement]:
    """Divide the cores of each node evenly among its workers. Lanes begin with the last core of a worker."""
    placed = []
    for number, index in enumerate(chosen):
        node, count, before = nodes[index], chosen.count(index), chosen[:number].count(index)
        own = node.own[before * len(node.own) // count : (before + 1) * len(node.own) // count]
        lanes = tuple(core[0] for core in reversed(own))
        cpus = tuple(sorted({*node.shared, *(cpu for core in own for cpu in core)}))
        placed.append(Placement(f"worker-{number}", cpus, lanes))
    return placed


def _with_gpus(workers: list[Placement], gpus: tuple[Gpu, ...]) -> tuple[Placement, ...]:
    numbers = [gpu.number for gpu in gpus[: len(workers)]]
    with_gpu = [worker._replace(gpu=number) for worker, number in zip(workers, numbers, strict=False)]
    return (*with_gpu, *workers[len(numbers) :])
