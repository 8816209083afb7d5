"""The messages of the protocol, made from the compiled descriptors in a pool of their own.

Other packages, such as clients of Triton and KServe, register messages with the same names in the default pool.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from horologe_common.status import InvalidInput

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"
PARAMETERS_MAX = 1024
"""More than those of a load with the most files."""
DESCRIPTORS = Path(__file__).parent / "protocol" / "descriptors.binpb"


def _load_pool() -> DescriptorPool:
    pool = DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


POOL = _load_pool()


def message_type(name: str) -> Any:
    """Return the class of a message of the protocol."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


def method_types() -> dict[str, tuple[Any, Any]]:
    """Return the classes of request and response of each method of the service."""
    methods = POOL.FindServiceByName(SERVICE).methods
    return {
        method.name: (message_type(method.input_type.name), message_type(method.output_type.name)) for method in methods
    }


ModelInferRequest = message_type("ModelInferRequest")
ModelInferResponse = message_type("ModelInferResponse")
ModelStreamInferResponse = message_type("ModelStreamInferResponse")


def parse(kind: Any, content: bytes) -> Any:
    """Return the message. Raise `InvalidInput` for bytes that are none of this kind."""
    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise InvalidInput(f"message: got {len(content)} bytes that are no {kind.DESCRIPTOR.name}: {error}") from error


def parameter_values(where: str, parameters: Any) -> dict[str, Any]:
    """Return the parameters as Python values. Raise `InvalidInput` for one without a value, or for too many."""
    if len(parameters) > PARAMETERS_MAX:
        raise InvalidInput(f"{where.removesuffix('.')}: got {len(parameters)}, wanted at most {PARAMETERS_MAX}")
    values = {}
    for name, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        if choice is None:
            raise InvalidInput(f"{where}{name[:80]}: got no value, wanted one")
        values[name] = getattr(parameter, choice)
    return values
