"""An imported Triton repository on real processes: tritonclient gets each model's answer, or the reason why not."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

from harness.command_line import run_horologe
from harness.http_calls import send_http
from harness.running_up import Up
from harness.triton_repositories import FOUR, a_decoupled_case, a_torchscript_case, triton_cases, write_case

if TYPE_CHECKING:
    from collections.abc import Iterator

CLIENT = """
import json, sys, numpy as np, tritonclient.http as http

address, cases = sys.argv[1], json.load(sys.stdin)
answers = {}
with http.InferenceServerClient(address, network_timeout=60.0, connection_timeout=60.0) as client:
    for name, version, inputs in cases:
        tensors = []
        for key, values in inputs.items():
            array = np.array(values, object)
            if not isinstance(array.flat[0], str):
                array = array.astype(np.float32)
            tensor = http.InferInput(key, array.shape, "BYTES" if array.dtype == object else "FP32")
            tensor.set_data_from_numpy(array)
            tensors.append(tensor)
        result = client.infer(name, tensors, model_version=version)
        outputs = [(output["name"], result.as_numpy(output["name"])) for output in result.get_response()["outputs"]]
        lists = {key: array.tolist() for key, array in outputs}
        answers[name + "/" + version] = lists
print(json.dumps(answers, default=bytes.decode))
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("up")
    cases = triton_cases() | ({"script": a_torchscript_case()} if find_spec("torch") else {})
    for name, case in cases.items():
        write_case(folder / "triton", name, case)
    assert run_horologe("import", "triton", "triton", "models", cwd=folder).exit_code == 1
    for name, case in cases.items():
        if case.missing or name == "unbatched":  # served as they are
            write_case(
                folder / "models", f"direct-{name}", case._replace(config=case.config.replace(f'"{name}"', '""'))
            )
    write_case(folder / "models", "repeat", a_decoupled_case())
    up = Up(folder, "--models", "models")
    yield up
    up.stop(signal.SIGKILL)


def test_each_model_answers_a_client_of_triton(up: Up) -> None:
    cases = triton_cases() | ({"script": a_torchscript_case()} if find_spec("torch") else {})
    served = {name: case for name, case in cases.items() if not case.missing}
    served["direct-unbatched"] = cases["unbatched"]
    expected = {f"{name}/{version}": case.outputs for name, case in served.items() for version in case.versions}
    requests = [[*key.split("/"), served[key.split("/")[0]].inputs] for key in expected]
    address = up.ready["http"].removeprefix("http://")
    result = subprocess.run(
        [sys.executable, "-c", CLIENT, address], input=json.dumps(requests), capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, (result.stderr, up.read_log())
    assert json.loads(result.stdout) == expected


def test_a_decoupled_model_is_a_stream(up: Up) -> None:
    url = f"{up.ready['http']}/v2/models/repeat/generate_stream"
    status, content = send_http("POST", url, b'{"IN": [4, 5]}')
    events = [json.loads(line.removeprefix(b"data: ")) for line in content.splitlines() if line]
    assert (status, [event["OUT"] for event in events]) == (200, [4, 5])


def test_the_index_names_what_is_missing(up: Up) -> None:
    status, content = send_http("POST", f"{up.ready['http']}/v2/repository/index", b"{}")
    assert status == 200
    entries: dict[str, Any] = {entry["name"]: entry for entry in json.loads(content)}
    models = {model["name"]: model for model in up.ask("models")}
    for name, case in triton_cases().items():
        if case.missing:
            entry = entries[f"direct-{name}"]
            assert entry["state"] == "UNAVAILABLE"
            assert case.missing in entry["reason"]
            assert case.missing in models[f"direct-{name}"]["reason"]


def test_classes_have_the_labels_of_the_repository(up: Up) -> None:
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": FOUR[0]}
    document = {"inputs": [tensor], "outputs": [{"name": "y", "parameters": {"classification": 3}}]}
    status, content = send_http("POST", f"{up.ready['http']}/v2/models/plain/infer", json.dumps(document).encode())
    assert status == 200, content
    assert json.loads(content)["outputs"][0]["data"] == ["4.000000:3:tr\xeas", "3.000000:2:two", "2.000000:1"]


def test_versions_that_the_policy_leaves_out_are_unknown(up: Up) -> None:
    for name, version in (("newest", "9"), ("chosen", "2")):
        url = f"{up.ready['http']}/v2/models/{name}/versions/{version}/ready"
        assert send_http("GET", url)[0] == 404
    status, values = up.infer("newest", FOUR)
    assert (status, values) == (200, FOUR[0])
