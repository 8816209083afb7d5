"""`horologe up` with a model that hangs: the others are served, and health, states and requests say what happens."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from harness.model_folders import ECHO, a_python_model, an_emulated_model
from harness.running_up import HOROLOGE, Up, send_http
from harness.waiting import until
from horologe import Client
from horologe_common.status import Lost, Refused, UnknownModel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HANG = "while True: pass\n"
REQUEST = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}


class Starting:
    """A system that starts, with known addresses: it is asked before it is ready."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.http = f"http://127.0.0.1:{free_port()}"
        self.client = f"ipc://{folder}/clients"
        self.log = (folder / "log").open("w")
        command = [*HOROLOGE, "up", "--workers", "1", "--json", "--metrics", "off", "--no-tuner", "--no-profiler"]
        addresses = ["--http", self.http.removeprefix("http://"), "--client", self.client]
        self.process = subprocess.Popen(
            [*command, *addresses, *options], cwd=folder, stdout=subprocess.PIPE, stderr=self.log, text=True
        )

    def get(self, path: str, body: object = None) -> tuple[int, bytes]:
        """Return status and body of a request; status 0 if nothing listens yet."""
        try:
            encoded = b"" if body is None else json.dumps(body).encode()
            return send_http("GET" if body is None else "POST", f"{self.http}{path}", encoded)
        except OSError:
            return 0, b""

    def state(self, model: str) -> str:
        status, body = self.get(f"/v2/models/{model}/ready")
        return str(json.loads(body)["state"]) if status in (200, 503) and b"state" in body else ""

    def wait_document(self) -> dict[str, str]:
        """Return the state of each model in the document that the command prints when it is ready."""
        assert self.process.stdout is not None
        document = json.loads(self.process.stdout.readline())
        return {model["name"]: model["state"] for model in document["models"]}

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.log.close()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def starting(tmp_path: Path) -> Iterator[Starting]:
    a_python_model(tmp_path / "models", HANG, name="hang", load_timeout='"9s"')
    an_emulated_model(tmp_path / "models")
    system = Starting(tmp_path)
    yield system
    system.stop()


def test_the_others_are_served_while_a_model_hangs_and_health_waits_for_its_timeout(starting: Starting) -> None:
    until(lambda: starting.get("/v2/models/pretend/infer", REQUEST)[0] == 200)
    assert starting.state("hang") == "LOADING"
    assert starting.get("/v2/health/ready")[0] == 503
    assert starting.get("/v2/health/live")[0] == 200
    status, body = starting.get("/v2/models/hang/infer", REQUEST)
    assert (status, b"is loading" in body) == (429, True)
    assert starting.get("/v2/models/nothing/infer", REQUEST)[0] == 404
    index = json.loads(starting.get("/v2/repository/index", {})[1])
    assert [(model["name"], model["state"]) for model in index] == [("hang", "LOADING"), ("pretend", "READY")]
    assert "worker/0: " in index[0]["reason"]

    assert starting.wait_document() == {"hang": "UNAVAILABLE", "pretend": "READY"}
    assert starting.get("/v2/health/ready")[0] == 200
    assert "load_timeout" in json.loads(starting.get("/v2/models/hang/ready")[1])["reason"]


def test_a_model_of_a_restarted_worker_is_never_unknown(tmp_path: Path) -> None:
    a_python_model(tmp_path / "models", "import time\ntime.sleep(2)\n" + ECHO)
    an_emulated_model(tmp_path / "models")
    up, stopped, statuses = (
        Up(tmp_path, "--no-profiler", "--no-tuner", "--metrics", "off"),
        threading.Event(),
        set[int](),
    )
    try:

        def ask() -> None:
            while not stopped.is_set():
                for model in ("code", "pretend"):
                    body = json.dumps(REQUEST | {"parameters": {"slo_ms": 300}}).encode()
                    with suppress(OSError):  # the system has been stopped
                        statuses.add(up.http("POST", f"{up.ready['http']}/v2/models/{model}/infer", body)[0])

        asking = threading.Thread(target=ask)
        asking.start()
        with Client(up.ready["clients"][0]) as client:
            os.kill(up.ready["processes"]["worker-0"], signal.SIGKILL)
            until(lambda: {state.state for state in client.models()} == {"LOADING"})
            assert up.get(f"{up.ready['http']}/v2/health/ready")[0] == 200, "it has been ready before"
            until(lambda: {state.state for state in client.models()} == {"READY"})
            with pytest.raises(UnknownModel):
                client.predict("nothing", [[1.0, 2, 3, 4]], slo_ms=300)
            until(lambda: 200 in statuses)
        stopped.set()
        asking.join()
        assert statuses <= {200, 429, 503, 504}
    finally:
        stopped.set()
        up.stop(signal.SIGKILL)


def test_a_load_of_one_model_does_not_wait_for_another_that_hangs(tmp_path: Path) -> None:
    an_emulated_model(tmp_path / "models")
    up = Up(tmp_path, "--no-profiler", "--no-tuner", "--metrics", "off")
    try:
        a_python_model(tmp_path / "models", HANG, name="hang", load_timeout='"1000s"')
        a_python_model(tmp_path / "models", name="fine")
        with Client(up.ready["clients"][0]) as client, Client(up.ready["clients"][0]) as other:
            hanging = threading.Thread(target=_load_hanging, args=(other,), daemon=True)
            hanging.start()
            until(lambda: any(state.spec.name == "hang" for state in client.models()))
            (state,) = client.admit("fine", "", True, timeout=30)
            assert state.state == "READY"
            assert [state.state for state in client.models("hang")] == ["LOADING"]
            with pytest.raises(Refused, match="is loading"):
                client.predict("hang", [[1.0, 2, 3, 4]], slo_ms=300)
            hanging.join(20)
    finally:
        up.stop(signal.SIGKILL)


def _load_hanging(client: Client) -> None:
    with suppress(Lost):
        client.admit("hang", "", True, timeout=12)
