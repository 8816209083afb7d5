"""Inputs of other libraries: tensors of torch and images of PIL, which the SDK does not import."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from horologe.core.client_feedback import feedback_messages
from horologe.core.encoding import Signature, encode_inputs
from horologe_common.models import ModelSpec, TensorSpec
from horologe_common.status import InvalidInput
from horologe_common.wire.frames import decode_array

PIXELS = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)


def encoded(value: Any, datatype: str, *shape: int) -> np.ndarray[Any, Any]:
    """Return the tensor that the server gets."""
    spec = ModelSpec("m", "1", "onnx", (TensorSpec("x", datatype, shape),), ())
    (tensor,), (payload,) = encode_inputs(Signature(spec), value)
    assert tensor.datatype == datatype
    return decode_array(tensor, payload)


class Tensor:
    """Stands for a tensor of torch, which the tests do not install."""

    def __init__(self, values: list[float], dtype: str = "torch.float32") -> None:
        self.values, self.dtype = values, dtype

    def detach(self) -> Tensor:
        return self

    cpu = detach

    def float(self) -> Tensor:
        return Tensor(self.values)

    def numpy(self) -> np.ndarray[Any, Any]:
        if self.dtype == "torch.bfloat16":
            raise TypeError("Got unsupported ScalarType BFloat16")
        return np.array(self.values, np.float32)


Tensor.__module__ = "torch"


@pytest.mark.parametrize("dtype", ["torch.float32", "torch.bfloat16"])
def test_a_tensor_of_torch_is_an_array(dtype: str) -> None:
    assert encoded(Tensor([1.5, 2.0], dtype), "FP32", -1).tolist() == [1.5, 2.0]
    assert encoded([Tensor([1.5], dtype), Tensor([2.0], dtype)], "FP32", -1, 1).tolist() == [[1.5], [2.0]]


MASKED = np.ma.array([[1.0, 2.0]], np.float32, mask=[[False, True]])


@pytest.mark.parametrize(
    "value", [MASKED, [MASKED[0], MASKED[0]], [[1.0, 2.0], MASKED[0]], [[[1.0, np.ma.masked]]], np.ma.masked]
)
def test_a_masked_value_is_no_number(value: Any) -> None:
    with pytest.raises(InvalidInput, match=r"input 'x': got .*, wanted an array: got masked values"):
        encoded(value, "FP32", -1, 2)
    with pytest.raises(InvalidInput, match="masked"):
        list(feedback_messages("digits", b"id", value, "", None, None))


def test_an_array_without_masked_values_is_an_array() -> None:
    assert encoded(MASKED.filled(0), "FP32", -1, 2).tolist() == [[1.0, 0.0]]
    assert encoded(MASKED[:, :1], "FP32", -1, 1).tolist() == [[1.0]]
    assert encoded([MASKED[0, :1]], "FP32", -1, 1).tolist() == [[1.0]]


def test_a_list_within_itself_is_no_array() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidInput, match="wanted an array"):
        encoded(endless, "FP32", -1)


def test_tensors_of_torch_itself() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (the extra `torch`)")
    weights = torch.nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert encoded(weights.t(), "FP32", -1, 2).tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert encoded(weights.to(torch.bfloat16), "FP32", -1, 2).tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert encoded(torch.tensor([1, 2]), "INT64", -1).tolist() == [1, 2]
    with pytest.raises(InvalidInput, match=r"input 'x': got Tensor, wanted an array"):
        encoded(torch.eye(2).to_sparse(), "FP32", -1, 2)


def test_an_image_is_an_array_and_a_list_of_images_a_batch() -> None:
    image = pytest.importorskip("PIL.Image").fromarray(PIXELS)
    np.testing.assert_array_equal(encoded([image, image], "UINT8", -1, 2, 4, 3), np.stack([PIXELS, PIXELS]))
    np.testing.assert_array_equal(encoded(image, "FP32", 2, 4, 3), PIXELS.astype(np.float32))
    with pytest.raises(InvalidInput, match="same shape"):
        encoded([image, image.resize((5, 5))], "UINT8", -1, 2, 4, 3)
    with pytest.raises(InvalidInput, match=r"convert\('RGB'\)"):
        encoded(image.convert("P"), "UINT8", 2, 4)


def test_the_sdk_imports_no_other_library() -> None:
    code = "import sys, horologe; print([name for name in ('torch', 'PIL') if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"
