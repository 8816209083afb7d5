"""The device under test, through the worker's own code: engine, models, batches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from bench_gpu.nets import MAX_ROWS, NETS, TINY, exported
from horologe_gpu_worker.runtimes.pytorch import cuda_engine
from horologe_gpu_worker.runtimes.pytorch.program import Program, program_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from horologe_gpu_worker.runtimes.pytorch.cuda_graphs import BatchLayout

PAGE_BYTES = 16 << 20
BATCH_SIZES = (1, 2, 4, 8, 16)


class Rig:
    """The device and its networks. `effort` scales the number of samples; `tiny` networks compute almost nothing."""

    def __init__(self, pretend: bool, effort: float = 1.0, half: bool = False, tiny: bool = False) -> None:
        self.pretend = pretend
        self.effort = effort
        self.half = half
        self.nets = TINY if tiny else NETS
        self.engine = cuda_engine.CudaEngine(0, 8 if tiny else 128, PAGE_BYTES, (4 if tiny else 512) << 20)
        self.device = self.engine.capturer.device
        self.copy_gb_s = 0.0
        """Rate of a plain copy from pinned memory, after it has been measured."""
        self.models: dict[str, Any] = {}
        self._programs: dict[str, Program] = {}

    def samples(self, wanted: int) -> int:
        """Return the number of samples to take of `wanted`."""
        return max(3, int(wanted * self.effort))

    def program(self, name: str) -> Program:
        if name not in self._programs:
            program = program_of(exported(self.nets[name], self.half), None if self.pretend else 0)
            cuda_engine.pin_memory(program.memory)
            self._programs[name] = program
        return self._programs[name]

    def new_model(self, name: str, sizes: tuple[int, ...] = BATCH_SIZES) -> Any:
        """Create a model of the program with its own addresses, loaded and captured."""
        program = self.program(name)
        spec = SimpleNamespace(
            key=name, inputs=program.inputs, outputs=program.outputs, batch_sizes=sizes, batched=True
        )
        model = self.engine.create_model(spec, program, 1)  # type: ignore[arg-type]
        model.load()
        model.warm(lambda size: self.inputs(name, size))
        return model

    def model(self, name: str) -> Any:
        """Return the model of this name that all sections share. It is loaded: a graph without weights would crash the
        process.
        """
        if name not in self.models:
            self.models[name] = self.new_model(name)
        if not self.models[name].loaded:
            self.models[name].load()
        return self.models[name]

    def inputs(self, name: str, rows: int, seed: int = 1) -> dict[str, NDArray[np.generic]]:
        torch.manual_seed(seed)
        example = self.nets[name].example(MAX_ROWS)
        array = example.half() if self.half and example.is_floating_point() else example
        return {self.program(name).inputs[0].name: array[:rows].numpy()}

    def layout(self, name: str, rows: int) -> BatchLayout:
        """Return the layout of a batch."""
        model = self.model(name)
        layout: BatchLayout = model.layout_of(model.shapes_of(self.inputs(name, rows)))
        return layout

    def staged(self, name: str, rows: int) -> tuple[Any, Any]:
        """Return the model, and a batch for it on the device."""
        model = self.model(name)
        inputs = self.inputs(name, rows)
        slot = model.slot(model.shapes_of(inputs))
        model.stage(slot, inputs)
        return model, slot

    def runner(self, name: str, rows: int) -> Callable[[], int]:
        """Return a function that runs a batch like the EXEC lane and returns its device time in ns."""
        model, slot = self.staged(name, rows)

        def run_ns() -> int:
            model.execute(rows, slot)
            return int(slot.device_ns)

        return run_ns
