"""JSON of applications: declarations, predictions, feedback."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from horologe_common.applications import Application
from horologe_common.wire import ModelStatistics
from horologe_frontend.oip.inference_response import OutputTensorJson
from horologe_frontend.oip.json_encoding import TensorJson


class DeclareJson(Application, kw_only=True, frozen=True):
    """The declaration of an application. The path has its name."""

    name: str = ""


class DeclarationJson(Application, frozen=True, omit_defaults=False):
    """A declared application."""


class StandingJson(ModelStatistics, array_like=False, frozen=True):
    """Statistics of a model of an application, and its weight in the policy."""


class ApplicationJson(msgspec.Struct, omit_defaults=True):
    """A declared application with its state."""

    application: DeclarationJson
    revision: int
    contexts: int
    statistics: list[StandingJson] = []


class ApplicationsJson(msgspec.Struct):
    """All declared applications."""

    applications: list[ApplicationJson]


class PredictionJson(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The answer of an application: one value of `prediction`, `confidence` and `defaulted` per row, or for task `any`
    the `outputs` of the model.
    """

    application: str
    prediction: Sequence[float] | None = None
    confidence: Sequence[float] | None = None
    defaulted: Sequence[bool] | None = None
    outputs: list[OutputTensorJson] | None = None
    models: tuple[str, ...]
    missing: tuple[str, ...]
    cached: bool
    prediction_id: str
    ignored_parameters: str = ""


class FeedbackStatusJson(msgspec.Struct):
    """The status of each item of a feedback."""

    statuses: list[str]
    reason: str


class ItemJson(msgspec.Struct, forbid_unknown_fields=True):
    """One item of feedback. `prediction_id` as in the response to the prediction."""

    prediction_id: str = ""
    truths: list[float] = []
    context: str = ""
    inputs: list[TensorJson] = []


class FeedbackJson(ItemJson, forbid_unknown_fields=True):
    """A list of `items`, or the fields of a single item."""

    items: list[ItemJson] | None = None
