"""`horologe pipeline show`: the text, the document and the figure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from horologe_cli.commands.serving import pipeline_commands
from horologe_common.clock import ms
from horologe_common.pipelines import PipelineStage, PipelineStructure
from horologe_common.wire import PipelineState, StageState

if TYPE_CHECKING:
    from pathlib import Path

STRUCTURE = PipelineStructure(
    "video",
    ms(150),
    (
        PipelineStage("detect", "detect", (), 1.0, 1.0),
        PipelineStage("vehicle", "vehicle", ("detect",), 0.5, 1.5),
        PipelineStage("person", "person", ("detect",), 0.25, 1.0),
        PipelineStage("merge", "merge", ("vehicle", "person"), 0.8, 1.0),
    ),
    40,
)
STAGES = (StageState("detect", 40, ms(5), ms(7), 3, 40), StageState("vehicle", 30, ms(10), ms(15), 0, 20))
STATE = PipelineState(1, 0, "", STRUCTURE, STAGES, 40, ms(15), ms(30), (("REFUSED", 3),))


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    def run(state: PipelineState, **options: Any) -> str:
        monkeypatch.setattr(pipeline_commands, "call_server", lambda endpoint, keys, call: state)
        pipeline_commands.show("video", **options)
        return capsys.readouterr().out

    return run


def test_the_text_names_stages_visits_latencies_and_drops(show) -> None:  # type: ignore[no-untyped-def]
    lines = show(STATE).splitlines()
    assert lines[0] == "pipeline video: 40 answered, 3 REFUSED, p50 15 ms, p99 30 ms"
    assert lines[2].split() == ["detect", "-", "100%", "1.00", "1.00", "5", "ms", "7", "ms", "3", "100%"]
    assert lines[3].split() == ["vehicle", "detect", "50%", "1.50", "0.75", "10", "ms", "15", "ms", "0", "50%"]
    assert lines[5].split()[:4] == ["merge", "vehicle,", "person", "80%"]


def test_the_document_holds_the_structure(show) -> None:  # type: ignore[no-untyped-def]
    document = json.loads(show(STATE, json=True))
    assert document["structure"]["stages"][1] == {
        "name": "vehicle", "model": "vehicle", "parents": ["detect"], "visits": 0.5, "fan_out": 1.5,
    }  # fmt: skip
    assert document["stages"][0]["drops"] == 3


def test_the_figure_is_written(show, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("matplotlib")
    show(STATE, plot=str(tmp_path / "video.png"))
    assert (tmp_path / "video.png").read_bytes().startswith(b"\x89PNG")


def test_a_pipeline_without_queries_has_no_stages(show) -> None:  # type: ignore[no-untyped-def]
    assert "no stages are known yet" in show(PipelineState(1))
    with pytest.raises(SystemExit):
        show(PipelineState(1), plot="video.png")
