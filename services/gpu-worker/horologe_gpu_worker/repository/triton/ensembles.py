"""Ensembles as pipelines: the steps of `ensemble_scheduling` become calls of a driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from horologe_gpu_worker.repository.triton.findings import Finding
from horologe_gpu_worker.repository.triton.tensors import tensor_entries

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

SLO = "30s"
"""Deadline of queries without one, which a pipeline must have and an ensemble has not."""


class PipelineForm(NamedTuple):
    """An ensemble as a pipeline."""

    driver: str
    """Source of `pipelines/NAME.py`."""
    table: dict[str, Any]
    """Keys of its table in `pipeline.toml`."""


def find_ensemble_faults(config: Any, served: Collection[str]) -> Iterator[Finding]:
    """Iterate over why an ensemble cannot be a pipeline, and what of it has no effect.

    `served`: names of the models and ensembles of the repository that are served.
    """
    for side in ("input", "output"):
        if not getattr(config, side):
            yield Finding(side, "missing", "got none, wanted all of the ensemble")
        for tensor in getattr(config, side):
            if tensor.HasField("reshape"):
                yield Finding(f"{side}.reshape", "missing", f"{tensor.name!r}: a pipeline reshapes no tensor")
    for number, step in enumerate(config.ensemble_scheduling.step, 1):
        where = f"ensemble_scheduling.step {number}"
        if step.model_name not in served:
            yield Finding(where, "missing", f"model {step.model_name!r} is not served")
        if step.model_namespace:
            yield Finding(where, "missing", "model_namespace: a repository is one namespace")
        if not step.input_map or not step.output_map:
            yield Finding(where, "missing", "got no input_map or no output_map, wanted both")
    if config.ensemble_scheduling.max_inflight_requests:
        yield Finding(
            "ensemble_scheduling.max_inflight_requests", "not needed", "`selector.pipeline_runs` is the limit"
        )
    yield from _find_tensor_faults(config)
    yield Finding("ensemble_scheduling", "limited", f"queries without a deadline have {SLO}: `slo` in pipeline.toml")


def _find_tensor_faults(config: Any) -> Iterator[Finding]:
    """Iterate over tensors that several steps make, and those that none makes."""
    made = [tensor.name for tensor in config.input]
    for step in config.ensemble_scheduling.step:
        made += step.output_map.values()
    for name in sorted({name for name in made if made.count(name) > 1}):
        yield Finding("ensemble_scheduling.step.output_map", "missing", f"tensor {name!r} is made more than once")
    order = step_levels(config)
    ordered = {number for level in order for number in level}
    for number, step in enumerate(config.ensemble_scheduling.step):
        if number not in ordered:
            lacking = sorted(set(step.input_map.values()) - set(made)) or ["a result of its own"]
            text = f"step {number + 1} needs {', '.join(lacking)}, which no step before it makes"
            yield Finding("ensemble_scheduling.step.input_map", "missing", text)
    for tensor in config.output:
        if tensor.name not in made:
            yield Finding("output", "missing", f"{tensor.name!r} is made by no step")


def step_levels(config: Any) -> list[list[int]]:
    """Return the steps in levels, by their numbers from 0: those of a level need only tensors of levels before it.

    Steps that need a tensor that none makes, or each other's results, are left out.
    """
    steps = list(config.ensemble_scheduling.step)
    known, levels, waiting = {tensor.name for tensor in config.input}, [], list(range(len(steps)))
    while level := [number for number in waiting if known.issuperset(steps[number].input_map.values())]:
        levels.append(level)
        waiting = [number for number in waiting if number not in level]
        for number in level:
            known.update(steps[number].output_map.values())
    return levels


def make_pipeline(config: Any) -> PipelineForm:
    """Return the pipeline of an ensemble without faults."""
    steps = config.ensemble_scheduling.step
    lines, parallel = [], False
    for level in step_levels(config):
        calls = [_call(steps[number]) for number in level]
        results = [f"result_{number + 1}" for number in level]
        if len(level) == 1:
            lines.append(f"    {results[0]} = await {calls[0]}")
        else:
            parallel = True
            lines.append(f"    {', '.join(results)} = await asyncio.gather(")
            lines += [f"        {call}," for call in calls]
            lines.append("    )")
        for number, result in zip(level, results, strict=True):
            outputs = sorted(steps[number].output_map.items())
            lines += [f"    tensors[{tensor!r}] = {result}[{output!r}]" for output, tensor in outputs]
    returned = ", ".join(f"{tensor.name!r}: tensors[{tensor.name!r}]" for tensor in config.output)
    head = ["import asyncio", "", ""] if parallel else []
    body = ["async def run(call, inputs):", "    tensors = dict(inputs)", *lines, f"    return {{{returned}}}", ""]
    return PipelineForm("\n".join([*head, *body]), _table(config))


def _call(step: Any) -> str:
    version = f"/{step.model_version}" if step.model_version > 0 else ""
    tensors = ", ".join(f"{name!r}: tensors[{tensor!r}]" for name, tensor in sorted(step.input_map.items()))
    return f"call({step.model_name + version!r}, {{{tensors}}})"


def _table(config: Any) -> dict[str, Any]:
    table: dict[str, Any] = {"slo": SLO}
    for side in ("input", "output"):
        entries = tensor_entries(config, side)
        table[f"{side}s"] = [{key: entry[key] for key in ("name", "datatype", "shape")} for entry in entries]
    if config.max_batch_size > 0:
        table["max_rows"] = config.max_batch_size
    if config.response_cache.enable:
        table["cache"] = True
    return table
