"""Schema of Triton's `config.pbtxt`: the public `inference.ModelConfig`, and its message classes.

The text format of protocol buffers needs names and types of fields only, so their numbers are counted here. The schema
is proto2, which distinguishes a field that is set to its default from a field that is not set.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = "inference"
ENUMS = """
DataType: TYPE_INVALID TYPE_BOOL TYPE_UINT8 TYPE_UINT16 TYPE_UINT32 TYPE_UINT64 TYPE_INT8 TYPE_INT16 TYPE_INT32
  TYPE_INT64 TYPE_FP16 TYPE_FP32 TYPE_FP64 TYPE_STRING TYPE_BF16
ModelInstanceGroup.Kind: KIND_AUTO KIND_GPU KIND_CPU KIND_MODEL
ModelInstanceGroup.SecondaryDevice.SecondaryDeviceKind: KIND_NVDLA
ModelInput.Format: FORMAT_NONE FORMAT_NHWC FORMAT_NCHW
BatchInput.Kind: BATCH_ELEMENT_COUNT BATCH_ACCUMULATED_ELEMENT_COUNT BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO
  BATCH_MAX_ELEMENT_COUNT_AS_SHAPE BATCH_ITEM_SHAPE BATCH_ITEM_SHAPE_FLATTEN
BatchOutput.Kind: BATCH_SCATTER_WITH_INPUT_SHAPE
ModelOptimizationPolicy.ModelPriority: PRIORITY_DEFAULT PRIORITY_MAX PRIORITY_MIN
ModelQueuePolicy.TimeoutAction: REJECT DELAY
ModelSequenceBatching.Control.Kind: CONTROL_SEQUENCE_START CONTROL_SEQUENCE_READY CONTROL_SEQUENCE_END
  CONTROL_SEQUENCE_CORRID
"""
"""Enumeration: its values."""
MESSAGES = """
ModelRateLimiter: resources ModelRateLimiter.Resource*, priority uint32
ModelRateLimiter.Resource: name string, global bool, count uint32
ModelInstanceGroup: name string, kind ModelInstanceGroup.Kind, count int32, rate_limiter ModelRateLimiter, gpus
  int32*, secondary_devices ModelInstanceGroup.SecondaryDevice*, profile string*, passive bool, host_policy string
ModelInstanceGroup.SecondaryDevice: kind ModelInstanceGroup.SecondaryDevice.SecondaryDeviceKind, device_id int64
ModelTensorReshape: shape int64*
ModelInput: name string, data_type DataType, format ModelInput.Format, dims int64*, reshape ModelTensorReshape,
  is_shape_tensor bool, allow_ragged_batch bool, optional bool, is_non_linear_format_io bool
ModelOutput: name string, data_type DataType, dims int64*, reshape ModelTensorReshape, label_filename string,
  is_shape_tensor bool, is_non_linear_format_io bool
BatchInput: kind BatchInput.Kind, target_name string*, data_type DataType, source_input string*
BatchOutput: target_name string*, kind BatchOutput.Kind, source_input string*
ModelVersionPolicy: latest ModelVersionPolicy.Latest@policy_choice, all ModelVersionPolicy.All@policy_choice,
  specific ModelVersionPolicy.Specific@policy_choice
ModelVersionPolicy.Latest: num_versions uint32
ModelVersionPolicy.All:
ModelVersionPolicy.Specific: versions int64*
ModelOptimizationPolicy: graph ModelOptimizationPolicy.Graph, priority ModelOptimizationPolicy.ModelPriority, cuda
  ModelOptimizationPolicy.Cuda, execution_accelerators ModelOptimizationPolicy.ExecutionAccelerators,
  input_pinned_memory ModelOptimizationPolicy.PinnedMemoryBuffer, output_pinned_memory
  ModelOptimizationPolicy.PinnedMemoryBuffer, gather_kernel_buffer_threshold uint32, eager_batching bool
ModelOptimizationPolicy.Graph: level int32
ModelOptimizationPolicy.Cuda: graphs bool, busy_wait_events bool, graph_spec
  ModelOptimizationPolicy.Cuda.GraphSpec*, output_copy_stream bool
ModelOptimizationPolicy.Cuda.GraphSpec: batch_size int32, input
  {string:ModelOptimizationPolicy.Cuda.GraphSpec.Shape}, graph_lower_bound
  ModelOptimizationPolicy.Cuda.GraphSpec.LowerBound
ModelOptimizationPolicy.Cuda.GraphSpec.Shape: dim int64*
ModelOptimizationPolicy.Cuda.GraphSpec.LowerBound: batch_size int32, input
  {string:ModelOptimizationPolicy.Cuda.GraphSpec.Shape}
ModelOptimizationPolicy.ExecutionAccelerators: gpu_execution_accelerator
  ModelOptimizationPolicy.ExecutionAccelerators.Accelerator*, cpu_execution_accelerator
  ModelOptimizationPolicy.ExecutionAccelerators.Accelerator*
ModelOptimizationPolicy.ExecutionAccelerators.Accelerator: name string, parameters {string:string}
ModelOptimizationPolicy.PinnedMemoryBuffer: enable bool
ModelQueuePolicy: timeout_action ModelQueuePolicy.TimeoutAction, default_timeout_microseconds uint64,
  allow_timeout_override bool, max_queue_size uint32
ModelDynamicBatching: preferred_batch_size int32*, max_queue_delay_microseconds uint64, preserve_ordering bool,
  priority_levels uint64, default_priority_level uint64, default_queue_policy ModelQueuePolicy,
  priority_queue_policy {uint64:ModelQueuePolicy}
ModelSequenceBatching: direct ModelSequenceBatching.StrategyDirect@strategy_choice, oldest
  ModelSequenceBatching.StrategyOldest@strategy_choice, max_sequence_idle_microseconds uint64, control_input
  ModelSequenceBatching.ControlInput*, state ModelSequenceBatching.State*, iterative_sequence bool
ModelSequenceBatching.Control: kind ModelSequenceBatching.Control.Kind, int32_false_true int32*, fp32_false_true
  float*, bool_false_true bool*, data_type DataType
ModelSequenceBatching.ControlInput: name string, control ModelSequenceBatching.Control*
ModelSequenceBatching.InitialState: data_type DataType, dims int64*, zero_data bool@state_data, data_file
  string@state_data, name string
ModelSequenceBatching.State: input_name string, output_name string, data_type DataType, dims int64*, initial_state
  ModelSequenceBatching.InitialState*, use_same_buffer_for_input_output bool, use_growable_memory bool
ModelSequenceBatching.StrategyDirect: max_queue_delay_microseconds uint64, minimum_slot_utilization float
ModelSequenceBatching.StrategyOldest: max_candidate_sequences int32, preferred_batch_size int32*,
  max_queue_delay_microseconds uint64, preserve_ordering bool
ModelEnsembling: step ModelEnsembling.Step*, max_inflight_requests uint32
ModelEnsembling.Step: model_name string, model_version int64, input_map {string:string}, output_map {string:string},
  model_namespace string
ModelParameter: string_value string
ModelWarmup: name string, batch_size uint32, inputs {string:ModelWarmup.Input}, count uint32
ModelWarmup.Input: data_type DataType, dims int64*, zero_data bool@input_data_type, random_data
  bool@input_data_type, input_data_file string@input_data_type
ModelOperations: op_library_filename string*
ModelTransactionPolicy: decoupled bool
ModelRepositoryAgents: agents ModelRepositoryAgents.Agent*
ModelRepositoryAgents.Agent: name string, parameters {string:string}
ModelResponseCache: enable bool
ModelMetrics: metric_control ModelMetrics.MetricControl*
ModelMetrics.MetricControl: metric_identifier ModelMetrics.MetricControl.MetricIdentifier, histogram_options
  ModelMetrics.MetricControl.HistogramOptions@metric_options
ModelMetrics.MetricControl.MetricIdentifier: family string
ModelMetrics.MetricControl.HistogramOptions: buckets double*
ModelConfig: name string, platform string, backend string, runtime string, version_policy ModelVersionPolicy,
  max_batch_size int32, input ModelInput*, output ModelOutput*, batch_input BatchInput*, batch_output BatchOutput*,
  optimization ModelOptimizationPolicy, dynamic_batching ModelDynamicBatching@scheduling_choice, sequence_batching
  ModelSequenceBatching@scheduling_choice, ensemble_scheduling ModelEnsembling@scheduling_choice, instance_group
  ModelInstanceGroup*, default_model_filename string, cc_model_filenames {string:string}, metric_tags
  {string:string}, parameters {string:ModelParameter}, model_warmup ModelWarmup*, model_operations ModelOperations,
  model_transaction_policy ModelTransactionPolicy, model_repository_agents ModelRepositoryAgents, response_cache
  ModelResponseCache, model_metrics ModelMetrics
"""
"""Message: its fields, each `name type`. `*` is repeated, `{key:value}` a map, `@name` the oneof of the field."""
SCALARS = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "uint32": FieldDescriptorProto.TYPE_UINT32,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "uint64": FieldDescriptorProto.TYPE_UINT64,
    "float": FieldDescriptorProto.TYPE_FLOAT,
    "double": FieldDescriptorProto.TYPE_DOUBLE,
}


@cache
def config_class() -> Any:
    """Return the message class of `inference.ModelConfig`, in a pool of its own: other packages define it too."""
    file = FileDescriptorProto(name="horologe/model_config.proto", package=PACKAGE, syntax="proto2")
    enums = dict(_entries(ENUMS))
    messages: dict[str, DescriptorProto] = {}
    for name, fields in _entries(MESSAGES):
        messages[name] = message = _owner(file, messages, name).add(name=name.rpartition(".")[2])
        for text in filter(None, fields.split(", ")):
            field, kind = text.split(" ")
            _add_field(message, field, kind, enums)
    for name, values in enums.items():
        owner, _, own = name.rpartition(".")
        enum = (messages[owner] if owner else file).enum_type.add(name=own)
        for number, value in enumerate(values.split()):
            enum.value.add(name=value, number=number)
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.ModelConfig"))


def _entries(text: str) -> Iterator[tuple[str, str]]:
    """Iterate over name and content of each line. A line that begins with a space belongs to the line before."""
    for line in re.sub(r"\n +", " ", text.strip()).split("\n"):
        name, _, content = line.partition(":")
        yield name, content.strip()


def _owner(file: FileDescriptorProto, messages: dict[str, DescriptorProto], name: str) -> Any:
    owner = name.rpartition(".")[0]
    return messages[owner].nested_type if owner else file.message_type


def _add_field(message: DescriptorProto, name: str, kind: str, enums: dict[str, str]) -> None:
    kind, _, oneof = kind.partition("@")
    field = message.field.add(name=name, number=len(message.field) + 1, label=FieldDescriptorProto.LABEL_OPTIONAL)
    if kind.startswith("{"):
        key, value = kind.strip("{}").split(":")
        entry = message.nested_type.add(name="".join(part.capitalize() for part in name.split("_")) + "Entry")
        entry.options.map_entry = True
        _add_field(entry, "key", key, enums)
        _add_field(entry, "value", value, enums)
        field.label, field.type = FieldDescriptorProto.LABEL_REPEATED, FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = entry.name
        return
    if kind.endswith("*"):
        field.label, kind = FieldDescriptorProto.LABEL_REPEATED, kind[:-1]
    if kind in SCALARS:
        field.type = SCALARS[kind]
    else:
        field.type = FieldDescriptorProto.TYPE_ENUM if kind in enums else FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{kind}"
    if oneof:
        if oneof not in [choice.name for choice in message.oneof_decl]:
            message.oneof_decl.add(name=oneof)
        field.oneof_index = [choice.name for choice in message.oneof_decl].index(oneof)
