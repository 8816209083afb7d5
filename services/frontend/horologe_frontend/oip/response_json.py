"""JSON documents about the server, its models and its repository. gRPC sends the same fields as messages."""

from __future__ import annotations

import msgspec

from horologe_frontend.core.stats import DurationTotal


class LiveJson(msgspec.Struct):
    """Whether the server runs."""

    live: bool


class ReadyJson(msgspec.Struct):
    """Whether the server accepts requests."""

    ready: bool


class ServerJson(msgspec.Struct):
    """Metadata of the server."""

    name: str
    version: str
    extensions: tuple[str, ...]


class ModelNamesJson(msgspec.Struct):
    """Names of all models."""

    models: list[str]


class TensorMetadataJson(msgspec.Struct):
    """An input or output of a model. -1 in `shape` stands for any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class MetadataJson(msgspec.Struct):
    """Metadata of a model."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadataJson]
    outputs: list[TensorMetadataJson]


class ReadinessJson(msgspec.Struct):
    """Whether a model accepts requests, with its state and the reason."""

    name: str
    ready: bool
    state: str
    reason: str


class InputConfigJson(msgspec.Struct, omit_defaults=True):
    """An input in Triton's form: `dims` are without the rows of a batch."""

    name: str
    data_type: str
    dims: tuple[int, ...]
    optional: bool = False
    """A request may leave it out."""


class OutputConfigJson(msgspec.Struct, omit_defaults=True):
    """An output in Triton's form: `dims` are without the rows of a batch."""

    name: str
    data_type: str
    dims: tuple[int, ...]
    label_filename: str = ""
    """Name of the file with the labels of its classes."""


class ResponseCacheJson(msgspec.Struct):
    """Whether equal requests are answered from the cache."""

    enable: bool


class StringParameterJson(msgspec.Struct):
    """A parameter of a model."""

    string_value: str


class BatchingJson(msgspec.Struct):
    """Batch sizes of a model."""

    preferred_batch_size: tuple[int, ...]


class TransactionPolicyJson(msgspec.Struct):
    """How a model answers. `decoupled`: it streams its outputs as items."""

    decoupled: bool


class ConfigJson(msgspec.Struct, omit_defaults=True):
    """Configuration of a model: the fields of Triton's ModelConfig that apply here."""

    name: str
    platform: str
    backend: str
    max_batch_size: int
    """Limit of the rows of a request. 0: tensors do not begin with rows."""
    input: list[InputConfigJson]
    output: list[OutputConfigJson]
    response_cache: ResponseCacheJson
    parameters: dict[str, StringParameterJson]
    dynamic_batching: BatchingJson | None = None
    model_transaction_policy: TransactionPolicyJson | None = None


class InferenceStatisticsJson(msgspec.Struct):
    """Numbers of requests, with their total durations in nanoseconds."""

    success: DurationTotal
    fail: DurationTotal
    queue: DurationTotal
    compute_input: DurationTotal
    compute_infer: DurationTotal
    compute_output: DurationTotal
    cache_hit: DurationTotal
    cache_miss: DurationTotal


class BatchStatisticsJson(msgspec.Struct):
    """Executions of one batch size, with their total durations in nanoseconds."""

    batch_size: int
    compute_input: DurationTotal
    compute_infer: DurationTotal
    compute_output: DurationTotal


class ModelStatisticsJson(msgspec.Struct):
    """Statistics of a version of a model, as Triton's extension defines them."""

    name: str
    version: str
    last_inference: int
    """Milliseconds since the epoch. 0: never."""
    inference_count: int
    """Rows."""
    execution_count: int
    """Batches."""
    inference_stats: InferenceStatisticsJson
    batch_stats: list[BatchStatisticsJson]
    response_stats: dict[str, InferenceStatisticsJson] = {}
    memory_usage: list[dict[str, str | int]] = []


class StatisticsJson(msgspec.Struct):
    """Statistics of models."""

    model_stats: list[ModelStatisticsJson]


class IndexEntryJson(msgspec.Struct):
    """A version of a model in the repository."""

    name: str
    version: str
    state: str
    reason: str
