"""Finds in the source of a `TritonPythonModel` what the adapter does not provide, before any of it runs."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from horologe_gpu_worker.repository.triton.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULE = "triton_python_backend_utils"
PROVIDED = frozenset({
    "InferenceRequest", "InferenceResponse", "Logger", "Tensor", "TritonError", "TritonModelException",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY", "deserialize_bytes_tensor", "get_input_config_by_name", "get_input_tensor_by_name",
    "get_model_dir", "get_output_config_by_name", "get_output_tensor_by_name", "numpy_to_triton_type",
    "serialize_byte_tensor", "triton_string_to_numpy", "triton_to_numpy_type",
    "using_decoupled_model_transaction_policy",
})  # fmt: skip
"""Names of the module that models may use."""
BLS = "calls of other models from a model (BLS)"
ABSENT_METHODS = {
    "request_id": "models get no data of a request but its tensors",
    "correlation_id": "models get no data of a request but its tensors",
}
"""Methods of a request that are refused under any variable name."""
SENDER = "get_response_sender"
ABSENT_REQUEST_METHODS = ("flags", "parameters", "timeout", "trace", "preferred_memory")
"""Methods of a request whose names are common elsewhere too. They are only found on variables of these names."""
REQUEST_NAMES = ("request", "req", "inference_request")


def find_unsupported(source: bytes, file: str, *, decoupled: bool) -> Iterator[Finding]:
    """Iterate over a finding for each line that uses what is missing. A source with a syntax error has none."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    aliases = set(_aliases(tree))
    for node in ast.walk(tree):
        where = f"{file} line {getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.ImportFrom) and node.module == MODULE:
            for name in node.names:
                if name.name not in PROVIDED:
                    yield Finding(where, "missing", f"{MODULE}.{name.name}")
        elif isinstance(node, ast.Call):
            if reason := BLS if _is_request(node.func, aliases) else _describe_method(node.func, decoupled):
                yield Finding(where, "missing", reason)
        elif isinstance(node, ast.Attribute) and _is_name(node.value, aliases) and node.attr not in PROVIDED:
            yield Finding(where, "missing", f"{MODULE}.{node.attr}")
        elif isinstance(node, ast.FunctionDef) and node.name == "auto_complete_config":
            yield Finding(where, "limited", "auto_complete_config is not called: config.pbtxt must be complete")


def _aliases(tree: ast.AST) -> Iterator[str]:
    """Iterate over the names by which the source calls the module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name == MODULE:
                    yield name.asname or MODULE


def _is_request(function: ast.expr, aliases: set[str]) -> bool:
    """Return whether a call makes an InferenceRequest, which only calls of other models need."""
    if isinstance(function, ast.Attribute):
        return function.attr == "InferenceRequest" and _is_name(function.value, aliases)
    return isinstance(function, ast.Name) and function.id == "InferenceRequest"


def _describe_method(node: ast.expr, decoupled: bool) -> str:
    """Return why a method that is called is missing; empty if it is not."""
    if not isinstance(node, ast.Attribute):
        return ""
    if node.attr == SENDER and not decoupled:
        return f"{SENDER}: the model is not decoupled, and `execute` returns one answer"
    if node.attr in ABSENT_METHODS:
        return f"{node.attr}: {ABSENT_METHODS[node.attr]}"
    if node.attr in ABSENT_REQUEST_METHODS and _is_name(node.value, REQUEST_NAMES):
        return f"{node.attr}: models get no data of a request but its tensors"
    return ""


def _is_name(node: ast.expr, names: set[str] | tuple[str, ...]) -> bool:
    return isinstance(node, ast.Name) and node.id in names
