"""The length of a request, and its application, on the way from the client's Predict to the controller's book."""

from __future__ import annotations

import msgspec
import pytest

from harness.builders import a_spec
from horologe_common.models import ModelSpec, TensorSpec
from horologe_common.status import InvalidInput
from horologe_common.wire import Submit, Tensor
from horologe_controller.core.requests.request import RequestTable
from horologe_frontend.core.model_versions import ModelVersions

Y = (TensorSpec("y", "FP32", (-1, 8)),)


def a_model(*shapes: tuple[int, ...], batched: bool = True, padded: bool = False) -> ModelSpec:
    """Inputs a, b, ... of these shapes."""
    inputs = tuple(TensorSpec(name, "FP32", shape) for name, shape in zip("abc", shapes, strict=False))
    return ModelSpec("m", "1", "onnx", inputs, Y, (1, 2, 4), batched, padded=padded)


def shape_and_length(spec: ModelSpec, *shapes: tuple[int, ...]) -> tuple[int, int, int]:
    """(rows, alike, length) of a request with inputs of these shapes."""
    tensors = tuple(Tensor(name, "FP32", shape, 0) for name, shape in zip("abc", shapes, strict=False))
    return ModelVersions().check_inputs(spec, tensors, ())


@pytest.mark.parametrize(
    ("wanted", "given", "length"),
    [
        ([(-1, 4)], [(2, 4)], 0),
        ([(-1, -1)], [(2, 17)], 17),
        ([(-1, -1, 3, -1)], [(1, 20, 3, 30)], 600),
        ([(-1, -1), (-1, -1, -1)], [(1, 900), (1, 5, 6)], 30),
        ([(-1, -1), (-1, -1)], [(1, 5), (1, 9)], 9),
        ([(-1, -1), (-1, 4)], [(1, 5), (1, 4)], 5),
        ([(-1, -1)], [(1, 0)], 0),
    ],
)
def test_length_is_the_size_in_the_variable_dimensions(
    wanted: list[tuple[int, ...]], given: list[tuple[int, ...]], length: int
) -> None:
    assert shape_and_length(a_model(*wanted), *given)[2] == length


def test_without_rows_the_first_dimension_counts_too() -> None:
    assert shape_and_length(a_model((-1, -1), batched=False), (3, 7)) == (1, 0, 21)


def test_requests_of_different_lengths_are_alike_only_where_they_are_padded() -> None:
    plain, padded = a_model((-1, -1)), a_model((-1, -1), padded=True)
    assert shape_and_length(plain, (1, 5))[1] != shape_and_length(plain, (1, 6))[1]
    assert [shape_and_length(padded, (1, length)) for length in (5, 6)] == [(1, 0, 5), (1, 0, 6)]


def test_padded_inputs_are_of_one_length() -> None:
    """Each input is padded for itself: the batch of one whose mask is shorter than its tokens would fail."""
    shapes = (1, 5), (1, 9)
    assert shape_and_length(a_model((-1, -1), (-1, -1)), *shapes)[2] == 9
    with pytest.raises(InvalidInput, match=r"input 'b': shape: got \[1, 9\], wanted 5 in dimension 1, as in input 'a'"):
        shape_and_length(a_model((-1, -1), (-1, -1), padded=True), *shapes)


def test_a_length_over_the_models_limit_is_named() -> None:
    spec = msgspec.structs.replace(a_model((-1, -1)), max_length=5)
    assert shape_and_length(spec, (1, 5))[2] == 5
    with pytest.raises(InvalidInput, match=r"input 'a': shape: got \[1, 6\], wanted at most 5 in dimension 1"):
        shape_and_length(spec, (1, 6))


def test_the_book_keeps_length_application_and_solo() -> None:
    submit = Submit(8, "sum/1", 1000, 1, "frontend/0#c", 6, length=96, application="chat", solo=True)
    request = RequestTable().create_request("profiler/0#d", submit, a_spec(), 0, 1000)
    assert (request.length, request.application, request.solo) == (96, "chat", True)
