"""The table of operations, the handlers and the OpenAPI document agree."""

from __future__ import annotations

import json
from typing import Any

import pytest

from frontend.oip_requests import GOOD, content, send
from horologe_frontend.oip.openapi import UNDOCUMENTED, openapi_document
from horologe_frontend.oip.operations import OPERATIONS, Operation

DOCUMENTED = [
    operation for group, operations in OPERATIONS.items() if group not in UNDOCUMENTED for operation in operations
]
NAMES = {"{model}": "echo", "{version}": "10", "{application}": "digits", "{repository}": "main", "{region}": "r"}
BODIES: dict[str, Any] = {
    "infer": GOOD,
    "generate": {"in": [1, 2, 3, 4]},
    "generate_stream": {"in": [[1, 2, 3, 4]]},
    "application_predict": GOOD,
    "application_declare": {"models": ["echo"]},
    "application_feedback": {"prediction_id": "01", "truths": [1]},
}


@pytest.mark.parametrize("operation", DOCUMENTED, ids=lambda operation: f"{operation.method} {operation.path}")
def test_every_operation_is_served_at_all_its_paths(operation: Operation) -> None:
    """`send` compares the responses with the document."""
    wanted = 501 if operation.name == "unsupported" else 200
    for path in operation.paths:
        for parameter, name in NAMES.items():
            path = path.replace(parameter, name)
        for method in operation.methods:
            assert send(method, path, BODIES.get(operation.name, b"")).status == wanted


def test_the_document_is_served() -> None:
    document = content(send("GET", "/v2/openapi.json"))
    assert document == json.loads(openapi_document())
    assert document["openapi"] == "3.1.0"
    identifiers = [
        operation["operationId"]
        for operations in document["paths"].values()
        for operation in operations.values()
        if "operationId" in operation
    ]
    assert {"infer", "infer_of_version", "load_of_repository"} <= set(identifiers)
    assert len(identifiers) == len(set(identifiers))
