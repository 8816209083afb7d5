"""`horologe application ...` as a shell sees it, before a frontend that keeps what is declared in a dict."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from fakes.frontend import ECHO, FakeFrontend
from harness.command_line import run_horologe
from horologe_cli.commands.serving.application_text import parse_policy_settings, parse_truth, read_application
from horologe_common.application_answers import answer_tensors, output_specs
from horologe_common.applications import Application
from horologe_common.models import ModelSpec
from horologe_common.status import InvalidInput, Status
from horologe_common.wire import (
    Acknowledged,
    Answer,
    ApplicationInfo,
    Applications,
    ApplicationState,
    Declare,
    Feedback,
    ModelInfo,
    Models,
    ModelState,
    ModelStatistics,
    Predict,
    Rollback,
    Withdraw,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OK, FAILED, USAGE = 0, 1, 2


class FakeSelector:
    """Answers like a selector, without learning."""

    def __init__(self) -> None:
        self.applications: dict[str, Application] = {}
        self.status = 0
        """Status of the answers to feedback."""

    def react(self, message: Any, buffers: Any) -> Any:
        match message:
            case Declare():
                self.applications[message.application.name] = message.application
                return [(self._states(message.id, message.application.name), ())]
            case Withdraw():
                return [(Applications(message.id, (), 0 if self.applications.pop(message.name, None) else 3), ())]
            case Rollback() | ApplicationInfo():
                return [(self._states(message.id, message.name), ())]
            case ModelInfo() if message.application:
                signature = output_specs(self.applications[message.application])
                spec = ModelSpec(message.application, "", "application", ECHO.inputs, signature)
                return [(Models(message.id, (ModelState(spec),)), ())]
            case Predict() if not message.model:
                outputs, payloads = answer_tensors(self.applications[message.application], [3], [0.5], [False])
                answer = Answer(message.id, 0, outputs, models=("echo",), missing=("gone",), prediction=b"P" * 40)
                return [(answer, payloads)]
            case Feedback():
                return [(Acknowledged(message.id, (self.status,) * len(message.items), "store is away"), ())]
        return None

    def _states(self, number: int, name: str) -> Applications:
        statistics = (ModelStatistics("echo", 0.75, False, 4, 1, 3, 2, 0.5),) if name else ()
        states = [
            ApplicationState(application, 7, statistics, 2)
            for application in self.applications.values()
            if name in ("", application.name)
        ]
        if name and not states:
            return Applications(number, (), int(Status.UNKNOWN_MODEL), f"application: got {name!r}")
        return Applications(number, tuple(states))


class Shell:
    def __init__(self, endpoint: str, selector: FakeSelector, frontend: FakeFrontend) -> None:
        self.endpoint, self.selector, self.frontend = endpoint, selector, frontend

    def run(self, *arguments: str, code: int = OK, stdin: str = "") -> str:
        """Run `horologe application ...`. Return standard output, or standard error if `code` is not 0."""
        result = run_horologe("application", *arguments, "--endpoint", self.endpoint, stdin=stdin)
        assert result.exit_code == code, result.stderr
        return result.stderr if code else result.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json"))


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    selector = FakeSelector()
    selector.applications["digits"] = Application("digits", ("echo", "other/2"), default=7.0, settings={"eta": 0.5})
    with FakeFrontend(f"ipc://{tmp_path}/f", react=selector.react) as frontend:
        yield Shell(f"ipc://{tmp_path}/f", selector, frontend)


def test_an_application_from_flags(shell: Shell) -> None:
    models = ("-m", "echo/1", "-m", "echo/2", "--shadow", "other")
    policy = ("--policy", "static", "--set", "weights.echo/1=95", "--set", "weights.echo/2=5")
    shown = shell.json("create", "canary", *models, *policy, "--slo-ms", "20", "--default", "0", "--no-cache")
    assert shell.selector.applications["canary"] == Application(
        "canary",
        ("echo/1", "echo/2"),
        20.0,
        policy="static",
        default=0.0,
        cache=False,
        shadows=("other",),
        settings={"weights": {"echo/1": 95.0, "echo/2": 5.0}},
    )
    assert (shown["application"]["name"], shown["revision"]) == ("canary", 7)


def test_models_that_are_not_ready_are_named(shell: Shell) -> None:
    create = ("application", "create", "new", "--endpoint", shell.endpoint)
    result = run_horologe(*create, "-m", "echo", "-m", "ecco")
    assert result.exit_code == OK
    assert "not ready, and missing from answers until they are: ecco" in result.stderr


def test_an_application_from_a_file(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "app.toml"
    file.write_text('name = "filed"\nmodels = ["echo"]\nslo_ms = 30\n[settings]\neta = 0.25\n')
    shell.run("create", "--file", str(file), "--slo-ms", "40")
    assert shell.selector.applications["filed"] == Application("filed", ("echo",), 40.0, settings={"eta": 0.25})


def test_lists_and_shows(shell: Shell) -> None:
    assert [state["application"]["name"] for state in shell.json("list")] == ["digits"]
    shown = shell.json("show", "digits", "--context", "user-1")
    assert shown["statistics"][0]["weight"] == 0.75
    assert shell.frontend.named(ApplicationInfo)[-1].context == "user-1"
    text = shell.run("show", "digits")
    assert all(word in text for word in ("echo, other/2", "eta 0.5", "default 7", "0.750", "75.0%", "0.250"))
    assert "digits" in shell.run("list")


def test_deletes_and_rolls_back(shell: Shell) -> None:
    assert shell.json("rollback", "digits")["revision"] == 7
    assert shell.json("delete", "digits") == {"deleted": "digits"}
    assert "nope" in shell.run("show", "nope", code=FAILED)


def test_predicts_and_takes_feedback(shell: Shell) -> None:
    answer = shell.json("predict", "digits", "--input", "[[1, 2, 3, 4]]", "--context", "u", "--slo-ms", "5000")
    assert (answer["prediction"], answer["models"], answer["missing"]) == ([3], ["echo"], ["gone"])
    assert "prediction [3]" in shell.run("predict", "digits", "--input", "[[1, 2, 3, 4]]")
    named = ("--prediction", answer["prediction_id"], "--truth", "3")
    assert shell.json("feedback", "digits", *named, "--context", "u") == {"learned": 1}
    ((item,),) = [message.items for message in shell.frontend.named(Feedback)]
    assert (item.prediction, item.truths, item.context) == (b"P" * 40, (3.0,), "u")
    shell.json("feedback", "digits", "--input", "[[1, 2, 3, 4], [5, 6, 7, 8]]", "--truth", "3,4")
    (item,) = shell.frontend.named(Feedback)[-1].items
    assert (item.inputs[0].datatype, item.inputs[0].shape, item.truths) == ("FP32", (2, 4), (3.0, 4.0))
    shell.selector.status = int(Status.REFUSED)
    assert "REFUSED: store is away" in shell.run("feedback", "digits", *named, code=FAILED)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("create", "x"), "models"),
        (("create", "x", "-m", "echo", "--set", "eta"), "--set eta"),
        (("create", "--file", "nowhere.toml"), "nowhere.toml"),
        (("feedback", "x", "--truth", "3"), "--prediction"),
        (("feedback", "x", "--truth", "three", "--prediction", "00"), "three"),
        (("feedback", "x", "--truth", "3", "--prediction", "xyz"), "hex"),
    ],
)
def test_wrong_arguments_are_usage_errors(shell: Shell, arguments: tuple[str, ...], word: str) -> None:
    error = shell.run(*arguments, code=USAGE)
    assert error.startswith("horologe: ")
    assert error.count("\n") == 1
    assert word in error


@pytest.mark.parametrize(
    ("text", "word"),
    [("[1]", "fields"), ("{", "--file"), ('{"models": ["a"], "eta": 1}', "eta"), ('{"models": "a"}', "models")],
)
def test_invalid_files(tmp_path: Path, text: str, word: str) -> None:
    file = tmp_path / "app.json"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=word):
        read_application(str(file), {"name": "x"})


def test_settings_and_truths() -> None:
    assert parse_policy_settings(["eta=0.1", "weights.a/1=2", "weights.b.c=3"]) == {
        "eta": 0.1,
        "weights": {"a/1": 2, "b.c": 3},
    }
    with pytest.raises(InvalidInput, match="number already"):
        parse_policy_settings(["eta=1", "eta.m=2"])
    assert parse_truth("3,4.5") == [3.0, 4.5]
