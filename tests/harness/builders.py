"""Builders of specs, profiles and messages, with defaults for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from horologe_common.clock import ms
from horologe_common.models import ModelSpec, Profile, TensorSpec
from horologe_common.wire import ModelReport, ModelState, Predict, Tensor

if TYPE_CHECKING:
    from horologe_common.core.protocol import Core

M = TypeVar("M")


def a_spec(name: str = "sum", version: str = "1", **fields: Any) -> ModelSpec:
    """Return the spec of a batched model: `x` [-1, 4] FP32 -> `y` [-1, 1] FP32."""
    settings: dict[str, Any] = {
        "batch_sizes": (1, 2, 4, 8, 16),
        "content_hash": f"hash-{name}",
        "weights_bytes": 1 << 20,
    } | fields
    return ModelSpec(
        name, version, "emulated", (TensorSpec("x", "FP32", (-1, 4)),), (TensorSpec("y", "FP32", (-1, 1)),), **settings
    )


def a_profile(
    exec_ms: float = 2, per_row_ms: float = 0.5, load_ms: float = 5, sizes: Any = (1, 2, 4, 8, 16)
) -> Profile:
    return Profile({size: ms(exec_ms + per_row_ms * (size - 1)) for size in sizes}, ms(load_ms))


def a_report(spec: ModelSpec | None = None, **profile: Any) -> ModelReport:
    spec = spec or a_spec()
    return ModelReport(spec, a_profile(sizes=spec.batch_sizes, **profile))


def a_state(spec: ModelSpec | None = None, state: str = "READY") -> ModelState:
    return ModelState(spec or a_spec(), state)


def a_tensor(rows: int = 1, name: str = "x", width: int = 4) -> Tensor:
    return Tensor(name, "FP32", (rows, width), 4 * rows * width)


def a_predict(number: int = 1, model: str = "sum", budget_ms: float = 100, rows: int = 1, **fields: Any) -> Predict:
    return Predict(number, model, "", ms(budget_ms), (a_tensor(rows),), **fields)


def some_bytes(rows: int = 1, width: int = 4) -> bytes:
    return bytes(4 * rows * width)


def sent(core: Core, kind: type[M], to: str = "") -> list[M]:
    """Remove from `core.out` the messages of one type to addresses that start with `to`, and return them."""
    removed = [out for out in core.out if isinstance(out.message, kind) and out.to.startswith(to)]
    core.out = [out for out in core.out if out not in removed]
    return [out.message for out in removed]


class BrokenError(Exception):
    """Raised by cores that a test has broken."""
