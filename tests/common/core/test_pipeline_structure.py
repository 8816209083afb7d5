"""Structure of a pipeline: scale factors, encoding, and what it refuses."""

from typing import Any

import msgspec
import pytest

from horologe_common.pipelines import PipelineStage, PipelineStructure

VIDEO = PipelineStructure(
    "video",
    150_000_000,
    (
        PipelineStage("detect", "detect", (), 1.0, 1.0),
        PipelineStage("vehicle", "vehicle", ("detect",), 0.5, 2.0),
        PipelineStage("person", "person", ("detect",), 0.5, 1.0, ("person-small",)),
        PipelineStage("merge", "merge", ("vehicle", "person"), 0.8, 1.0),
    ),
    100,
)


def test_scale_factor_is_the_mean_number_of_calls_per_query() -> None:
    assert VIDEO.scale_factor("vehicle") == pytest.approx(1.0)
    assert VIDEO.visit_probability("merge") == pytest.approx(0.8 * 0.75)
    with pytest.raises(KeyError):
        VIDEO.scale_factor("plate")


@pytest.mark.parametrize("codec", [msgspec.json, msgspec.msgpack])
def test_structure_survives_encoding(codec: Any) -> None:
    assert codec.decode(codec.encode(VIDEO), type=PipelineStructure) == VIDEO


STAGE = PipelineStage("a", "a", (), 1.0, 1.0)
INVALID = [
    ("name", {"name": ""}),
    ("slo_ns", {"slo_ns": 0}),
    ("slo_ns", {"slo_ns": 10**30}),
    ("queries", {"queries": -1}),
    ("queries", {"queries": 10**20}),
    ("stages", {"stages": ()}),
    ("stages", {"stages": tuple(PipelineStage(f"s{i}", "a", (), 1.0, 1.0) for i in range(65))}),
    *(
        (f"stages[1].{field}", {"stages": (STAGE, stage)})
        for field, stage in (
            ("name", STAGE),
            ("model", PipelineStage("b", "", (), 1.0, 1.0)),
            ("parents", PipelineStage("b", "b", ("c",), 1.0, 1.0)),
            ("parents", PipelineStage("b", "b", ("a", "a"), 1.0, 1.0)),
            ("visits", PipelineStage("b", "b", ("a",), 1.5, 1.0)),
            ("visits", PipelineStage("b", "b", ("a",), float("nan"), 1.0)),
            ("fan_out", PipelineStage("b", "b", ("a",), 1.0, 0.5)),
            ("fan_out", PipelineStage("b", "b", ("a",), 1.0, float("inf"))),
            ("fan_out", PipelineStage("b", "b", ("a",), 1.0, 1e300)),
        )
    ),
]


@pytest.mark.parametrize(("field", "change"), INVALID)
def test_validate_names_the_field(field: str, change: dict[str, Any]) -> None:
    VIDEO.validate()
    with pytest.raises(ValueError, match="wanted") as raised:
        msgspec.structs.replace(VIDEO, **change).validate()
    assert str(raised.value).startswith(f"{field}: got ")
