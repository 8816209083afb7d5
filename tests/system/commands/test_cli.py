"""The `horologe` command as a shell sees it: help, output, errors in one line, exit codes."""

from __future__ import annotations

import json
import re
import socket
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from harness.command_line import run_horologe

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result

SERVING = ("up", "predict", "models", "load", "unload", "status")
COMMANDS = (*SERVING, "demo", "measure", "bench", "sim", "replay", "explain", "doctor", "keys")
PLAN_COMMANDS = [f"plan {name}" for name in ("make", "estimate", "apply", "status", "withdraw")]
APPLICATION_COMMANDS = [
    f"application {name}" for name in ("list", "show", "create", "delete", "rollback", "predict", "feedback")
]
OK, FAILED, USAGE, UNREACHABLE = 0, 1, 2, 3
NO_SERVER = "ipc:///nonexistent/horologe-no-server"
SHORT_SIM = ("sim", "--model", "resnet50_v1", "--rate", "9", "--duration", "1s")


def assert_one_line(result: Result, code: int, *words: str) -> None:
    assert result.exit_code == code, result.stderr
    assert result.stderr.startswith("horologe: ")
    assert result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr


def test_help_names_every_command() -> None:
    command = [sys.executable, "-m", "horologe_cli.main", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert result.returncode == OK
    assert all(f"  {command} " in result.stdout for command in COMMANDS)


@pytest.mark.parametrize("command", [*COMMANDS, *PLAN_COMMANDS, *APPLICATION_COMMANDS])
def test_every_command_has_help_with_examples(command: str) -> None:
    result = run_horologe(*command.split(), "--help")
    assert result.exit_code == OK
    assert f"\n    horologe {command}" in result.stdout
    assert "--json" in result.stdout


def test_there_are_at_most_nineteen_commands() -> None:
    listed = run_horologe("--help").stdout.partition("Commands:")[2].partition("\n\n")[0]
    assert len([line for line in listed.splitlines() if re.match(r"  \w", line)]) <= 19


def test_help_imports_no_heavy_library() -> None:
    heavy = "zmq numpy rich.table sklearn onnxruntime uvloop structlog asyncio"
    code = f"import sys, horologe_cli.main; print([name for name in {heavy.split()} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert result.stdout == "[]\n", result.stderr


def test_version() -> None:
    assert run_horologe("--version").stdout.strip().count(".") == 2


def test_unknown_commands_and_options_are_usage_errors() -> None:
    assert run_horologe("serve").exit_code == USAGE
    assert run_horologe("models", "--nonsense").exit_code == USAGE


def test_without_a_folder_of_models_up_names_the_options(tmp_path: Path) -> None:
    result = run_horologe("up", cwd=tmp_path)
    assert_one_line(result, USAGE, "models: got 'models'", "--models DIR", "horologe up --demo")
    result = run_horologe("up", "--demo", "--models", "mine", cwd=tmp_path)
    assert_one_line(result, USAGE, "--models: got 'mine' with --demo")
    result = run_horologe("demo", "--compare-profiler", "--endpoint", NO_SERVER)
    assert_one_line(result, USAGE, "--compare-profiler")


@pytest.mark.parametrize(
    "arguments", [("models",), ("status",), ("predict", "m", "--input", "[[1]]", "--slo-ms", "50")]
)
def test_no_server_at_the_endpoint(arguments: tuple[str, ...]) -> None:
    result = run_horologe(*arguments, "--endpoint", NO_SERVER)
    assert_one_line(result, UNREACHABLE, NO_SERVER, "horologe up")


def test_an_invalid_endpoint() -> None:
    assert_one_line(
        run_horologe("models", "--endpoint", "localhost:8003"), USAGE, "'localhost:8003'", "tcp://HOST:PORT"
    )


def test_unreadable_input() -> None:
    result = run_horologe("predict", "m", "--input", "[[1, 2", "--endpoint", NO_SERVER)
    assert_one_line(result, USAGE, "--input", "not JSON")


def test_pickled_input_is_rejected(tmp_path: Path) -> None:
    import numpy as np

    np.save(tmp_path / "evil.npy", np.array([{}], dtype=object), allow_pickle=True)
    assert_one_line(run_horologe("predict", "m", "--input", str(tmp_path / "evil.npy")), USAGE, "evil.npy")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--set", "worker.nonsense=1"), ("worker.nonsense", "the settings are")),
        (("--set", "nonsense.field=1"), ("nonsense", "the sections are")),
        (("--set", "worker"), ("--set worker", "SECTION.FIELD=VALUE")),
        (("--set", "links.bind=tcp://0.0.0.0:1"), ("links.bind",)),
        (("--set", "frontend.grace_ns=5 minutes"), ("frontend.grace_ns", "'5 minutes'")),
        (("--scheduler", "lifo"), ("controller.scheduler", "'lifo'", "clockwork")),
        (("--http", "8000"), ("--http", "'8000'", "HOST:PORT")),
        (("--http", "127.0.0.1:0", "--client", "8003"), ("--client", "'8003'", "tcp://HOST:PORT")),
        (("--http", "0.0.0.0:0"), ("0.0.0.0", "http.keys_file", "--insecure")),
        (("--models", "nowhere"), ("models", "'nowhere'")),
    ],
)
def test_up_rejects_invalid_options(arguments: tuple[str, ...], words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    assert_one_line(run_horologe("up", *arguments, cwd=tmp_path), USAGE, *words)


def test_up_names_a_port_in_use(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert_one_line(run_horologe("up", "--http", address, cwd=tmp_path), USAGE, address, "in use", "--http")


def test_doctor_as_text_and_as_json() -> None:
    assert "real-time priority" in run_horologe("doctor").stdout
    result = run_horologe("doctor", "--json")
    report = json.loads(result.stdout)
    levels = {finding["level"] for finding in report["findings"]}
    assert levels <= {"ok", "warn", "fail"}
    assert report["level"] in levels
    assert result.exit_code == (FAILED if report["level"] == "fail" else OK)
    subjects = {finding["subject"] for finding in report["findings"]}
    assert {"cores", "CPU quota", "CPU governor", "real-time priority", "open files", "swap", "port 8000"} <= subjects
    assert all(finding["hint"] for finding in report["findings"] if finding["level"] != "ok")


def test_keys_are_private_and_kept(tmp_path: Path) -> None:
    first = run_horologe("keys", str(tmp_path / "keys"), "--client", "alice", "--json")
    assert first.exit_code == OK
    made = json.loads(first.stdout)["made"]
    assert f"{tmp_path}/keys/clients/alice.key_secret" in made
    secret = (tmp_path / "keys/clients/alice.key_secret").read_text()
    assert stat.S_IMODE((tmp_path / "keys/clients/alice.key_secret").stat().st_mode) == 0o600
    second = run_horologe("keys", str(tmp_path / "keys"), "--client", "alice", "--client", "bob", "--json")
    made = [path.rpartition("/")[2] for path in json.loads(second.stdout)["made"]]
    assert made == ["bob.key", "bob.key_secret", "bob.secret", "keys.toml"]
    assert (tmp_path / "keys/clients/alice.key_secret").read_text() == secret


def test_the_keys_of_a_worker_are_copied_to_a_folder_of_their_own(tmp_path: Path) -> None:
    assert run_horologe("keys", "keys", "--worker", "copy", cwd=tmp_path).exit_code == OK
    copied = {str(path.relative_to(tmp_path / "copy")) for path in (tmp_path / "copy").rglob("*.*")}
    assert copied == {"service/service.key", "peers/worker.key", "peers/worker.key_secret"}


def test_a_client_name_that_leaves_the_folder(tmp_path: Path) -> None:
    assert_one_line(run_horologe("keys", str(tmp_path), "--client", "../evil"), USAGE, "'../evil'")


def test_keys_in_an_unwritable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert_one_line(run_horologe("keys", str(tmp_path / "file" / "keys")), USAGE, "keys")


def test_sim_lists_its_examples() -> None:
    assert "two-models" in run_horologe("sim").stdout.split()


def test_sim_with_an_unknown_scenario() -> None:
    result = run_horologe("sim", "nowhere.toml")
    assert_one_line(result, USAGE, "'nowhere.toml'", "wanted a TOML file or an example", "two-models")
    assert "Errno" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "file"),
    [
        (("up", "--config", "nowhere.toml"), "nowhere.toml"),
        (("predict", "m", "--input", "nowhere.npy"), "nowhere.npy"),
        (("sim", "--model", "resnet50_v1", "--trace", "nowhere.csv"), "nowhere.csv"),
        ((*SHORT_SIM, "--trace-out", "nowhere/timeline.json"), "nowhere/timeline.json"),
    ],
)
def test_a_missing_file_is_named_without_an_error_number(arguments: tuple[str, ...], file: str, tmp_path: Path) -> None:
    result = run_horologe(*arguments, cwd=tmp_path)
    assert_one_line(result, USAGE, file, "No such file or directory")
    assert "Errno" not in result.stderr
    assert result.stderr.count(file) == 1


def test_replay_with_an_unknown_recording() -> None:
    assert_one_line(run_horologe("replay", "nowhere.rec"), USAGE, "nowhere.rec", "no such file")
