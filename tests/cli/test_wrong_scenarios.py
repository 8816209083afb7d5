"""`horologe sim` with wrong files and options: one line that names the field, the value and what was wanted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from cli.sim_command import sim

if TYPE_CHECKING:
    from pathlib import Path

USAGE = 2
MODEL = '[[models]]\nname = "resnet50_v1"\nslo = "50ms"\n'
LOAD = "[[load]]\nrate = 50\n"


def refused(*arguments: str) -> str:
    result = sim(*arguments)
    assert result.exit_code == USAGE, result.output
    return str(result.stderr)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "models: got none, wanted [[models]]"),
        (MODEL.encode(), "load: got none, wanted [[load]]"),
        (b"\xff\xfe", "encoding: got the byte 0xff, wanted UTF-8"),
        (b"duration =", "got text that is not TOML, wanted a TOML file: Invalid value"),
        (b"duration = 20", 'duration: got 20, wanted a duration with a unit, such as "20ms" or "20s"'),
        (b'duration = "-1s"', "duration: got '-1s', wanted a duration above 0"),
        (b'duration = "100000min"', "duration: got '100000min', wanted a duration of at most 604800s"),
        (b"workers = 0", "workers: got 0, wanted a whole number of at least 1"),
        (b"colour = 1", "colour: got an unknown name, wanted one of models, load"),
        ((MODEL + "[[load]]\nrate = -5").encode(), "load[0].rate: got -5, wanted a number of at least 0"),
        ((MODEL + '[[load]]\nkind = "trace"').encode(), "load[0].times: got none, wanted times"),
        ((MODEL + "[[load]]\nrate = 5\nrows = 17").encode(), "load[0].rows: got 17, wanted at most 16"),
        (('warmup = "10s"\n' + MODEL + LOAD).encode(), "warmup: got 10s, wanted less than the duration, 10s"),
        ((MODEL + MODEL + LOAD).encode(), "models: name: got 'resnet50_v1' more than once"),
        ((MODEL + "workers = [1]\n" + LOAD).encode(), "resnet50_v1: workers: got 1, wanted numbers from 0 to 0"),
        ((MODEL + LOAD + '[controller]\nscheduler = "foo"').encode(), "controller.scheduler: got 'foo', wanted one of"),
        ((MODEL + "exec_ms = { 1 = -2.0 }\n" + LOAD).encode(), "models[0].exec_ms: got {'1': -2.0}, wanted a number"),
        (('[[models]]\nname = "nope"\n' + LOAD).encode(), "model nope: exec_ms: got no times"),
    ],
)
def test_a_wrong_scenario_is_named_with_its_field(tmp_path: Path, text: bytes, message: str) -> None:
    (tmp_path / "mine.toml").write_bytes(text)
    assert message in refused(str(tmp_path / "mine.toml"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "got no requests"),
        (b"time,model\n1,a\n", "line 1: got 'time,model', wanted the column seconds"),
        (b"seconds,colour\n1,a\n", "line 1: got 'colour', wanted the column seconds and some of model"),
        (b"seconds,model\nsoon,resnet50_v1\n", "line 2: seconds: got 'soon'"),
        (b"seconds,slo_ms\n1,-5\n", "line 2: slo_ms: got '-5', wanted a number above 0"),
        (b"seconds,model\n1,nope\n", "line 2: model: got 'nope', wanted exec_ms, or the name of a model"),
        (b"seconds,model\n1,\xff\n", "encoding: got the byte 0xff, wanted a file in UTF-8"),
        (b"seconds,seconds\n1,2\n", "line 1: got 'seconds,seconds', wanted each column once"),
        (b"seconds\n1,2\n", "line 2: got 2 cells, wanted at most 1: seconds"),
        (b"seconds\n1\n", "models: got none, wanted [[models]], --model, or the column model"),
        (b"seconds,model,rows\n1,resnet50_v1,0\n", "line 2: rows: got '0', wanted a whole number above 0"),
        (b"seconds,model,rows\n1,resnet50_v1,1.5\n", "line 2: rows: got '1.5', wanted a whole number"),
        (b"seconds,model,rows\n1,resnet50_v1,17\n", "line 2: rows: got 17, wanted at most 16, the largest batch"),
        (b"seconds,model,length\n1,resnet50_v1,17.9\n", "line 2: length: got '17.9', wanted a whole number"),
        (b"seconds,exec_ms\n1,3\n", "line 2: model: got nothing beside exec_ms 3, wanted a name"),
        (b"seconds,model\n1700000000123,resnet50_v1\n", "wanted a time in seconds (is it in milliseconds"),
        (b"seconds,model\n0,resnet50_v1\n1000000,resnet50_v1\n", "1,000,000 s until the last request, wanted at most"),
        (b"seconds,model\n0," + 200_000 * b"a" + b"\n", "line 2: got text that is not CSV"),
    ],
)
def test_a_wrong_file_of_requests_is_named_with_its_line(tmp_path: Path, text: bytes, message: str) -> None:
    (tmp_path / "mine.csv").write_bytes(text)
    assert message in refused("--requests", str(tmp_path / "mine.csv"))


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("--trace", "", "got no requests"),
        ("--trace", "0.1\nsoon\n", "line 2"),
        ("--counts", "0,many\n", "line 1: got '0,many'"),
        ("--counts", "0,0\n1,0\n", "got no requests"),
        ("--counts", "0,100\n1000000,1\n", "s until the last request, wanted at most 604,800 s (a week)"),
        ("--trace", "1,resnet50_v1,3\n", "line 1: got 3 cells, wanted at most 2: seconds[,model]"),
        ("--trace", "1,nope\n", "load[0]: load.models: got 'nope', wanted one of resnet50_v1"),
    ],
)
def test_a_wrong_trace_is_named(tmp_path: Path, option: str, text: str, message: str) -> None:
    (tmp_path / "mine.csv").write_text(text)
    assert message in refused("--model", "resnet50_v1", option, str(tmp_path / "mine.csv"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["two-models", "--rate", "5"], "FILE, --rate: got both"),
        (["two-models", "--slo", "5ms", "--pages", "3", "--noise", "none"], "FILE, --slo, --pages, --noise: got both"),
        (["--scheduler", "edf"], "--scheduler: got nothing to simulate, wanted one of FILE, --model"),
        (["--model", "resnet50_v1", "--rate", "5", "--slo", "0ms"], "--slo: got '0ms', wanted a duration above 0"),
        (["--model", "resnet50_v1", "--rate", "5", "--slo=-5ms"], "--slo: got '-5ms', wanted a duration above 0"),
        (["two-models", "--seed", "-1"], "--seed"),
        (["two-models", "--trace", "a.csv", "--counts", "b.csv"], "--trace, --counts: got several"),
        (["--requests", "a.csv", "--duration", "5s"], "--duration, --requests: got both"),
        (["two-models", "--devices", "2", "--find-devices", "99"], "--find-devices, --devices: got both"),
        (["mine.csv"], "wanted a TOML file; --requests"),
        (["--model", "nope", "--rate", "1"], "resnet50_v1"),
        (["--model", "resnet50_v1*0", "--rate", "1"], "COPIES"),
        (["--model", "resnet50_v1"], "--rate"),
        (["--model", "resnet50_v1", "--rate", "1", "--slo", "5"], "--slo"),
        (["two-models", "--model", "resnet50_v1"], "FILE"),
        (["--model", "resnet50_v1", "--trace", "nope"], "nope"),
        (["--model", "resnet50_v1", "--rate", "1", "--noise", "loud"], "clockwork"),
        (["two-models", "--scheduler", "nope"], "--scheduler: got 'nope'"),
        (["failures", "--scheduler", "edf"], "--scheduler: got a scenario with"),
        (["--model", "resnet50_v1", "--rate", "5", "--requests", "x.csv"], "got several, wanted one of"),
        (["--requests", "nowhere.csv"], "nowhere.csv"),
        (["two-models", "--scheduler", "edf", "--find-devices", "99"], "--find-devices, --trace-out"),
        (["two-models", "--scheduler", "edf", "--trace-out", "x.json"], "--find-devices, --trace-out"),
    ],
)
def test_wrong_options_are_named(arguments: list[str], message: str) -> None:
    assert message in refused(*arguments)


def test_times_since_1970_count_from_the_first_request(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("\ufeffseconds,model\n1700000000.1,resnet50_v1\n1700000001.5,resnet50_v1\n")
    document = json.loads(sim("--requests", str(file), "--scheduler", "horologe", "--json").stdout)
    assert document["notes"] == ["times count from the first request, at 1700000000 s"]
    assert document["seconds"] == pytest.approx(1.5)
    assert document["verdict"].startswith("the default (horologe) serves 100.00% in time")
    result = sim("--model", "resnet50_v1", "--trace", str(file), "--json")
    assert json.loads(result.stdout)["total"]["sent"] == 2
    assert "times count from the first request, at 1700000000 s" in result.stderr


def test_requests_without_a_deadline_and_of_the_warmup_are_not_counted_and_the_report_says_so(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(f'duration = "2s"\nwarmup = "1s"\n{MODEL}{LOAD}[[load]]\nrate = 20\nbest_effort = true\n')
    document = json.loads(sim(str(file), "--scheduler", "horologe", "--json").stdout)
    assert 20 < document["requests"] < 80
    warmup, best_effort = document["notes"]
    assert "of the warm-up are not counted" in warmup
    assert "without a deadline are not counted" in best_effort
    file.write_text('duration = "2s"\n[[models]]\nname = "resnet50_v1"\n[[load]]\nrate = 20\n')
    assert "slo: got no request with a deadline" in refused(str(file), "--scheduler", "horologe")


def test_the_warmup_of_a_scenario_does_not_cut_a_file_of_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("seconds,model\n0.1,resnet18\n0.2,resnet18\n")
    document = json.loads(
        sim("two-models", "--requests", str(tmp_path / "mine.csv"), "--scheduler", "edf", "--json").stdout
    )
    assert document["requests"] == 2
    assert document["results"][0]["ahead"] is None


def test_names_are_listed_as_text_or_json() -> None:
    assert json.loads(sim("--json").stdout)["examples"] == sim().stdout.split()
    assert "resnet50_v1" in sim("--list-models").stdout.split()
