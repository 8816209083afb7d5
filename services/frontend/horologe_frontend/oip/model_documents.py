"""Documents about the server and its models, which HTTP sends as JSON and gRPC as messages; loads and unloads."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horologe_common.clock import monotonic_ns
from horologe_common.models import natural_sort_key
from horologe_common.rollouts import reached_versions
from horologe_common.status import InvalidInput, Status, UnknownModel, error_for
from horologe_common.wire import Admit, ModelState
from horologe_frontend.core.model_versions import check_read
from horologe_frontend.core.stats import DurationTotal, ModelStats
from horologe_frontend.http.http_messages import Unsupported
from horologe_frontend.oip.known_parameters import LOAD, UNLOAD, check_parameters, read_rollout
from horologe_frontend.oip.predicts import NO_PARAMETERS, flag_parameter
from horologe_frontend.oip.response_json import (
    BatchingJson,
    BatchStatisticsJson,
    ConfigJson,
    IndexEntryJson,
    InferenceStatisticsJson,
    InputConfigJson,
    MetadataJson,
    ModelNamesJson,
    ModelStatisticsJson,
    OutputConfigJson,
    ReadinessJson,
    ResponseCacheJson,
    ServerJson,
    StatisticsJson,
    StringParameterJson,
    TensorMetadataJson,
    TransactionPolicyJson,
)
from horologe_frontend.uploads import CONFIG, FILE, is_upload, write_model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from horologe_common.models import ModelSpec, TensorSpec
    from horologe_frontend.core.access import Grant
    from horologe_frontend.core.management import ManagementCall
    from horologe_frontend.core.stats import BatchStats
    from horologe_frontend.gateway import Gateway

EXTENSIONS = ("binary_tensor_data", "classification", "model_configuration", "model_repository", "statistics")
PLATFORMS = {"onnx": "onnxruntime_onnx", "pytorch": "pytorch_libtorch", "torchscript": "pytorch_libtorch"}
"""Platform name of Triton for each runtime. Other runtimes keep their own name."""
BACKENDS = {"onnx": "onnxruntime", "torchscript": "pytorch"}


class ModelDocuments:
    """Describes the models of the catalogue. `is_ready` returns whether this server accepts requests.

    `version` is that of the server. An empty version of a model stands for the one that requests reach. `uploads`: see
    `HttpSettings`.
    """

    def __init__(self, gateway: Gateway, is_ready: Callable[[], bool], version: str, uploads: str = "") -> None:
        self._gateway = gateway
        self._catalogue, self._stats_of = gateway.core.catalogue, gateway.core.stats_of
        self.is_ready = is_ready
        self._version = version
        self._uploads = uploads

    def server(self) -> ServerJson:
        """Return the metadata of the server."""
        return ServerJson("horologe", self._version, EXTENSIONS)

    def names(self) -> ModelNamesJson:
        """Return the names of all models."""
        return ModelNamesJson(sorted({state.spec.name for state in self._catalogue.model_states()}))

    def metadata(self, model: str, version: str) -> MetadataJson:
        """Return the metadata of a model. Raise `UnknownModel`, or `Refused` while its signature is not known."""
        states = self._states(model, version)
        state = choose_version(states, model, version)
        check_read(state)
        return model_metadata(state.spec, states)

    def config(self, model: str, version: str) -> ConfigJson:
        """Return the configuration of a model. Raise as `metadata` does."""
        state = choose_version(self._states(model, version), model, version)
        check_read(state)
        return model_config(state.spec)

    def readiness(self, model: str, version: str) -> ReadinessJson:
        """Return whether a model is ready, with its state and the reason. Raise `UnknownModel`."""
        state = choose_version(self._states(model, version), model, version)
        ready = state.state == "READY" and self.is_ready()
        return ReadinessJson(model, ready, state.state, state.reason)

    def statistics(self, model: str = "", version: str = "") -> StatisticsJson:
        """Return the statistics of a model or an application; without a name, of all models. Raise `UnknownModel`."""
        states: Sequence[ModelState] = self._catalogue.model_states()
        if model:
            states = self._states(model, version)
            state = choose_version(states, model, version)
            states = [state] if version else states
        offset_ns = time.time_ns() - monotonic_ns()
        specs = [state.spec for state in states]
        return StatisticsJson([model_statistics(spec, self._stats_of(spec), offset_ns) for spec in specs])

    def index(self, ready_only: bool) -> list[IndexEntryJson]:
        """Return the index of the repository."""
        return repository_index(self._catalogue.model_states(), ready_only)

    async def load(
        self, model: str, admitted: bool, parameters: Mapping[str, Any] | None, entry: ManagementCall, grant: Grant
    ) -> list[IndexEntryJson]:
        """Load a model of the repository again (`admitted`), or unload it. Return its index. Raise `HorologeError`, and
        `Unsupported` for an upload that `grant` does not permit.

        A load with a configuration or files writes the model to the repository before. One with a parameter of
        `ROLLOUTS` changes which version requests without a version reach. `entry`: gets the name and the version of the
        call.
        """
        parameters = parameters or NO_PARAMETERS
        others = {name: value for name, value in parameters.items() if not (admitted and is_upload(name))}
        check_parameters("parameters.", others, (*LOAD, CONFIG, f"{FILE}PATH") if admitted else UNLOAD)
        for name in UNLOAD:
            flag_parameter(parameters, "parameters", name, False)
        rollout, version, weight = read_rollout(parameters)
        message = Admit(0, model, version, admitted, rollout, weight)
        entry.name_admit(message)
        if len(others) < len(parameters):
            self.check_upload(entry, grant)
            if rollout:
                raise InvalidInput(f"parameters.{rollout}: wanted a load of its own, after that of the files")
            await asyncio.to_thread(write_model, Path(self._uploads), model, parameters)
        models = await self._gateway.call(message)
        entry.name_reply(models)
        if models.status != Status.OK:
            raise error_for(models.status, models.reason)
        return repository_index(models.models, False)

    def check_upload(self, entry: ManagementCall, grant: Grant) -> None:
        """Name the call an upload. Raise `Unsupported` unless uploads are possible, and the key permits them."""
        entry.call = "upload"
        if not grant.entry.upload:
            raise Unsupported("parameters.config and files: not supported without a key that permits `upload`")
        if not self._uploads:
            raise Unsupported("parameters.config and files: not supported, because `http.uploads` names no folder")

    def _states(self, model: str, version: str) -> Sequence[ModelState]:
        states: Sequence[ModelState] = self._catalogue.model_states(model)
        return states or [ModelState(self._gateway.find_spec(model, version))]


def _version_key(state: ModelState) -> tuple[tuple[int, int, str], ...]:
    return natural_sort_key(state.spec.version)


def choose_version(states: Sequence[ModelState], model: str, version: str) -> ModelState:
    """Return the requested version, or else the one that requests reach, or the newest. Raise `UnknownModel`."""
    candidates = sorted((state for state in states if version in ("", state.spec.version)), key=_version_key)
    if not candidates:
        raise UnknownModel(f"model {model!r}{f' version {version!r}' if version else ''} is unknown")
    return (reached_versions(candidates) or candidates[-1:])[0]


def model_metadata(spec: ModelSpec, states: Sequence[ModelState]) -> MetadataJson:
    """Return the metadata of a model. `states`: all versions of the model."""
    return MetadataJson(
        spec.name,
        [state.spec.version for state in sorted(states, key=_version_key) if state.spec.version],
        PLATFORMS.get(spec.runtime, spec.runtime),
        [TensorMetadataJson(tensor.name, tensor.datatype, tensor.shape) for tensor in spec.inputs],
        [TensorMetadataJson(tensor.name, tensor.datatype, tensor.shape) for tensor in spec.outputs],
    )


def model_config(spec: ModelSpec) -> ConfigJson:
    """Return the configuration of a model."""
    parameters = {"slo_ns": str(spec.slo_ns), "content_hash": spec.content_hash}
    if spec.notes:
        parameters["notes"] = "; ".join(spec.notes)
    return ConfigJson(
        spec.name,
        PLATFORMS.get(spec.runtime, ""),
        BACKENDS.get(spec.runtime, spec.runtime),
        spec.max_batch if spec.batched else spec.max_rows,
        [InputConfigJson(*_config_of(tensor, spec), tensor.name in spec.optional) for tensor in spec.inputs],
        [
            OutputConfigJson(*_config_of(tensor, spec), label_file)
            for tensor, label_file in zip(spec.outputs, spec.label_files or ("",) * len(spec.outputs), strict=True)
        ],
        ResponseCacheJson(spec.cache),
        {name: StringParameterJson(value) for name, value in parameters.items()},
        BatchingJson(spec.batch_sizes) if spec.batched else None,
        TransactionPolicyJson(True) if spec.streams else None,
    )


def _config_of(tensor: TensorSpec, spec: ModelSpec) -> tuple[str, str, tuple[int, ...]]:
    """Return name, type and dimensions of a tensor in Triton's form."""
    kind = "STRING" if tensor.datatype == "BYTES" else tensor.datatype
    return tensor.name, f"TYPE_{kind}", tensor.shape[1:] if spec.batched or spec.max_rows else tensor.shape


def repository_index(states: Sequence[ModelState], ready_only: bool) -> list[IndexEntryJson]:
    """Return the index of the repository. The reason also has the notes about the model."""
    return [
        IndexEntryJson(
            state.spec.name,
            state.spec.version,
            state.state,
            "; ".join(filter(None, (state.reason, *state.spec.notes))),
        )
        for state in sorted(states, key=lambda state: (state.spec.name, _version_key(state)))
        if state.state == "READY" or not ready_only
    ]


def model_statistics(spec: ModelSpec, stats: ModelStats, epoch_minus_monotonic_ns: int) -> ModelStatisticsJson:
    """Return the statistics of a version (Triton's docs/protocol/extension_statistics.md).

    `compute_input` and `compute_output` have the count of `compute_infer`, as perf_analyzer demands. Their durations
    are 0, because the time of the transfers is part of `queue`.
    """
    last_ns = stats.last_ns and stats.last_ns + epoch_minus_monotonic_ns
    infer, transfers = stats.compute_infer, DurationTotal(stats.compute_infer.count)
    return ModelStatisticsJson(
        spec.name,
        spec.version,
        last_ns // 1_000_000,
        stats.rows,
        round(sum(batch.executions for batch in stats.batches.values())),
        InferenceStatisticsJson(
            stats.success, stats.fail, stats.queue, transfers, infer, transfers, stats.cache_hit, stats.cache_miss
        ),
        [_batch_statistics(size, batch) for size, batch in sorted(stats.batches.items())],
    )


def _batch_statistics(size: int, batch: BatchStats) -> BatchStatisticsJson:
    infer = DurationTotal(round(batch.executions), round(batch.exec_ns))
    transfers = DurationTotal(infer.count)
    return BatchStatisticsJson(size, transfers, infer, transfers)
