"""The messages of gRPC: compiled from the .proto files, and those of Triton's client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2
from tritonclient.grpc import model_config_pb2, service_pb2

import horologe_frontend.grpc

PROTOCOL = Path(horologe_frontend.grpc.__file__).parent / "protocol"


def test_the_descriptors_are_those_of_the_proto_files(tmp_path: Path) -> None:
    """The names of files and comments are not compared: only what is in the messages."""
    output = tmp_path / "descriptors"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(PROTOCOL), "--include_imports"]
    subprocess.run([*command, f"--descriptor_set_out={output}", str(PROTOCOL / "inference.proto")], check=True)
    assert parse(output) == parse(PROTOCOL / "descriptors.binpb"), "run `make protocol`"


def parse(path: Path) -> Any:
    return descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes())


def members(file: Any) -> set[Any]:
    """Return every field, value and method of a file, with names, numbers and types."""
    found: set[Any] = set()

    def walk(message: Any, path: str) -> None:
        path = f"{path}.{message.name}"
        for field in message.field:
            oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
            found.add((path, field.name, field.number, field.type, field.label, field.type_name, oneof))
        for enum in message.enum_type:
            found.update((path, enum.name, value.name, value.number) for value in enum.value)
        for nested in message.nested_type:
            walk(nested, path)

    for message in file.message_type:
        walk(message, file.package)
    for enum in file.enum_type:
        found.update((enum.name, value.name, value.number) for value in enum.value)
    for service in file.service:
        for method in service.method:
            streams = method.client_streaming, method.server_streaming
            found.add((service.name, method.name, method.input_type, method.output_type, *streams))
    return found


def test_names_and_numbers_are_those_of_tritons_client() -> None:
    own = set().union(*(members(file) for file in parse(PROTOCOL / "descriptors.binpb").file))
    for module in (service_pb2, model_config_pb2):
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        assert members(file) <= own


def test_services_start_without_the_packages_of_grpc() -> None:
    """Without them nothing changes, and with them the start does not wait for their import."""
    program = (
        "import sys, horologe_cli.local.edge, horologe_frontend.__main__, horologe_cli.local.topology as topology\n"
        "topology.settings_sections()\n"
        "print([name for name in sys.modules if name.partition('.')[0] in ('grpc', 'grpc_health', 'google')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
