"""What becomes of each field of a `config.pbtxt`: a rule for every field of the schema, so that none is ignored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from horologe_gpu_worker.repository.triton.tensors import DATATYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Effect = Literal["used", "not needed", "limited", "missing"]
    """`limited`: the model is served, and a user may notice the difference. `missing`: it is not served, because its
    answers would differ."""
    Rule = Callable[["ModelFacts"], tuple[Effect, str]]


class Finding(NamedTuple):
    """A field of the configuration, or a line of a model's source, and what becomes of it."""

    field: str
    effect: Effect
    text: str


class ModelFacts(NamedTuple):
    """What the rules need to know of a model."""

    config: Any
    model: str
    """Name of the model's folder."""
    backend: str
    """`onnxruntime`, `pytorch`, `python` or `ensemble`; empty: another one, or none."""


BACKENDS = ("onnxruntime", "pytorch", "python", "ensemble")
PYTHON_ENVIRONMENT = "EXECUTION_ENV_PATH"
THREADS, THREADS_DIGITS = "intra_op_thread_count", 9


def find_effects(facts: ModelFacts) -> Iterator[Finding]:
    """Iterate over the effects of all fields that are set, in the order of the schema."""
    seen = set()
    for path, value in _set_fields(facts.config, ""):
        if path not in seen:
            seen.add(path)
            rule = RULES.get(path)
            effect, text = rule(facts) if rule else ("missing", f"got {str(value)[:40]}, which is not known here")
            yield Finding(path + _name_parts(path, value), effect, text)


def _set_fields(message: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Iterate over path and value of the fields that have a rule, and of the fields of those that have none.

    A number, text or switch that is set to its default says nothing.
    """
    for field, value in message.ListFields():
        path = prefix + field.name
        has_parts = any(rule.startswith(f"{path}.") for rule in RULES)
        if path in RULES and (field.is_repeated or field.message_type or value or path == "max_batch_size"):
            yield path, value
        if field.message_type is None:
            if path not in RULES and value:
                yield path, value
        elif has_parts or path not in RULES:
            for part in value if field.is_repeated else [value]:
                yield from _set_fields(part, f"{path}.")


def _name_parts(path: str, value: Any) -> str:
    """Return the fields in a field whose rule holds for all of them, such as ` (count, kind)`."""
    if path not in WHOLE:
        return ""
    parts = [value] if hasattr(value, "ListFields") else value
    names = dict.fromkeys(field.name for part in parts for field, _ in part.ListFields())
    return f" ({', '.join(names)})" if names else ""


def _rule(effect: Effect, text: str) -> Rule:
    return lambda facts: (effect, text)


def _name(facts: ModelFacts) -> tuple[Effect, str]:
    if facts.config.name == facts.model:
        return "used", "the name of the folder"
    return "missing", f"got {facts.config.name!r}, wanted {facts.model!r}, the name of the folder"


def _backend(facts: ModelFacts) -> tuple[Effect, str]:
    if facts.backend:
        return "used", "a pipeline" if facts.backend == "ensemble" else "`runtime`"
    got = facts.config.backend or facts.config.platform
    return "missing", f"got {got!r}, wanted one of {', '.join(BACKENDS)}"


def _runtime(facts: ModelFacts) -> tuple[Effect, str]:
    if facts.config.runtime == f"libtriton_{facts.backend}.so":
        return "not needed", "the library of the backend"
    return "missing", f"got {facts.config.runtime!r}, wanted the backend's own"


def _rows(facts: ModelFacts) -> tuple[Effect, str]:
    if facts.config.max_batch_size < 0:
        return "missing", f"got {facts.config.max_batch_size}, wanted at least 0"
    return "used", "`batching`, `batch_sizes`"


def _datatype(side: str) -> Rule:
    def rule(facts: ModelFacts) -> tuple[Effect, str]:
        for tensor in getattr(facts.config, side):
            kind = tensor.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[tensor.data_type].name
            if kind not in DATATYPES:
                return "missing", f"{tensor.name!r}: got {kind}, wanted one of {', '.join(DATATYPES)}"
            if kind == "TYPE_STRING" and facts.backend == "pytorch":
                return "missing", f"{tensor.name!r}: got {kind}, wanted numbers for TorchScript"
        return "used", "`datatype`"

    return rule


def _ragged(facts: ModelFacts) -> tuple[Effect, str]:
    if facts.backend == "python":
        return "not needed", "requests of different shapes run after each other"
    return "missing", "requests of different shapes share no batch"


def _optional(facts: ModelFacts) -> tuple[Effect, str]:
    if facts.backend == "python":
        return "used", "`optional`"
    names = ", ".join(tensor.name for tensor in facts.config.input if tensor.optional)
    return "limited", f"{names}: a request without it is INVALID_INPUT"


def _labels(facts: ModelFacts) -> tuple[Effect, str]:
    if facts.backend == "ensemble":
        return "limited", "classes of a pipeline have an index and a value, and no label"
    for tensor in facts.config.output:
        if "/" in tensor.label_filename:
            return "missing", f"{tensor.name!r}: got {tensor.label_filename!r}, wanted a file beside config.pbtxt"
    return "used", "`labels`"


def _parameters(facts: ModelFacts) -> tuple[Effect, str]:
    keys = sorted(facts.config.parameters)
    if facts.backend == "python":
        if PYTHON_ENVIRONMENT in keys:
            return "missing", f"{PYTHON_ENVIRONMENT}: set `python` or `requirements` in a model.toml"
        return "used", "given to `initialize`"
    unused = [key for key in keys if key != THREADS or not read_threads(facts.config, facts.backend)]
    return ("limited", f"without effect: {', '.join(unused)}") if unused else ("used", "`threads`")


def read_threads(config: Any, backend: str) -> int:
    """Return the threads that the parameters of an ONNX model set; 0 if they do not."""
    text = config.parameters[THREADS].string_value if THREADS in config.parameters else ""
    return int(text) if backend == "onnxruntime" and len(text) <= THREADS_DIGITS and text.isdecimal() else 0


def _preferred_sizes(facts: ModelFacts) -> tuple[Effect, str]:
    most, sizes = facts.config.max_batch_size, facts.config.dynamic_batching.preferred_batch_size
    if wrong := [size for size in sizes if not 0 < size <= most]:
        return "missing", f"got {wrong[0]}, wanted 1 to `max_batch_size`, {most}"
    return "used", "`batch_sizes`. The scheduler chooses among them"


def _batching(facts: ModelFacts) -> tuple[Effect, str]:
    if facts.config.max_batch_size == 0:
        return "limited", "without effect: `max_batch_size` is 0"
    if facts.config.model_transaction_policy.decoupled:
        return "limited", "requests run alone: each is a stream"
    if facts.backend == "python" and has_variable_outputs(facts.config):
        return "limited", "requests run alone: outputs of variable dimensions cannot share a batch"
    return "used", "`batching`"


def _decoupled(facts: ModelFacts) -> tuple[Effect, str]:
    if facts.backend == "python":
        return "limited", "`stream`: one stream at a time and copy, others are REFUSED, unless you raise `max_open`"
    return "missing", f"only models of the backend python stream, got {facts.backend!r}"


def _cache(facts: ModelFacts) -> tuple[Effect, str]:
    if facts.config.model_transaction_policy.decoupled:
        return "limited", "streams are not cached"
    return "used", "`cache`"


def has_variable_outputs(config: Any) -> bool:
    """Return whether the outputs of requests with equal shapes may have different shapes."""
    return any(dim < 0 for tensor in config.output for dim in tensor.dims)


def _warmup(facts: ModelFacts) -> tuple[Effect, str]:
    if facts.backend == "ensemble":
        return "not needed", "the models of the pipeline are warmed up"
    names = {tensor.name for tensor in facts.config.input}
    wrong = [name for sample in facts.config.model_warmup for name in sample.inputs if name not in names]
    if wrong and names:
        return "limited", f"without effect: {wrong[0]!r} is no input"
    given = [data for sample in facts.config.model_warmup for data in sample.inputs.values()]
    if any(data.random_data or data.input_data_file for data in given):
        return "limited", "shapes are used, and zeros in place of random numbers and of files"
    return "used", "`warmup_shape`. Every batch size runs once"


GPU_MEMORY = "2GiB"
"""`gpu_memory` of a Python model with instances of KIND_GPU: Triton's configuration does not say how much they take."""


def uses_gpu(config: Any) -> bool:
    """Return whether the configuration asks for instances on a GPU."""
    return any(group.kind == group.KIND_GPU for group in config.instance_group)


def _instances(facts: ModelFacts) -> tuple[Effect, str]:
    if facts.backend == "python" and uses_gpu(facts.config):
        return "used", f"`gpu_memory`: {GPU_MEMORY}"
    return "not needed", "the controller decides which devices hold a model"


WHOLE = ("instance_group", "optimization", "dynamic_batching.default_queue_policy")
"""Fields of which the report names the fields in them."""
RULES: dict[str, Rule] = {
    "name": _name,
    "platform": _backend,
    "backend": _backend,
    "runtime": _runtime,
    "version_policy": _rule("used", "`versions`"),
    "max_batch_size": _rows,
    **{
        f"{side}.{field}": rule
        for side in ("input", "output")
        for field, rule in {
            "name": _rule("used", f"`[[{side}s]]`"),
            "data_type": _datatype(side),
            "dims": _rule("used", "`shape`"),
            "reshape": _rule("used", "`reshape`"),
            "is_shape_tensor": _rule("missing", "tensors whose values are shapes need TensorRT"),
            "is_non_linear_format_io": _rule("missing", "needs TensorRT"),
        }.items()
    },
    "input.format": _rule("not needed", "no server converts the layout"),
    "input.allow_ragged_batch": _ragged,
    "input.optional": _optional,
    "output.label_filename": _labels,
    "batch_input": _rule("missing", "no inputs are made from a batch"),
    "batch_output": _rule("missing", "no outputs are scattered over a batch"),
    "optimization": _rule("not needed", "changes no answer"),
    "dynamic_batching": _batching,
    "dynamic_batching.preferred_batch_size": _preferred_sizes,
    "dynamic_batching.max_queue_delay_microseconds": _rule(
        "not needed", "the scheduler waits for a larger batch as long as deadlines allow"
    ),
    "dynamic_batching.preserve_ordering": _rule("not needed", "each request gets its own answer"),
    "dynamic_batching.priority_levels": _rule("limited", "requests have deadlines, and no priorities"),
    "dynamic_batching.default_priority_level": _rule("limited", "requests have deadlines, and no priorities"),
    "dynamic_batching.default_queue_policy": _rule("limited", "set `slo`: requests that would be late are REFUSED"),
    "dynamic_batching.priority_queue_policy": _rule("limited", "set `slo`: requests that would be late are REFUSED"),
    "sequence_batching": _rule("missing", "no state is kept between requests"),
    "ensemble_scheduling": _rule("missing", "`horologe import triton` makes a pipeline of it"),
    "instance_group": _instances,
    "default_model_filename": _rule("used", "`file`"),
    "cc_model_filenames": _rule("missing", "one file serves all devices"),
    "metric_tags": _rule("limited", "metrics have the labels model and version"),
    "parameters": _parameters,
    "model_warmup": _warmup,
    "model_operations": _rule("missing", "no libraries of operators are loaded"),
    "model_transaction_policy.decoupled": _decoupled,
    "model_repository_agents": _rule("missing", "agents are not run"),
    "response_cache.enable": _cache,
    "model_metrics": _rule("limited", "histograms have buckets of their own"),
}
"""Path of a field -> its rule, which also holds for the fields in it that have none of their own."""
