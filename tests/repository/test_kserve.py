"""The runtime for KServe: valid for KServe's own resource definitions, and a command that serves one model."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import horologe
from harness.kserve_client import kserve_python
from harness.model_folders import onnx_bytes
from harness.running_up import Up
from repository.helm_chart import ROOT

KSERVE = ROOT / "deploy" / "helm" / "horologe" / "kserve"
FILES = ("serving-runtime.yaml", "inference-service.yaml")


def read(file: str) -> dict[str, Any]:
    return dict(yaml.safe_load((KSERVE / file).read_text()))


def container() -> dict[str, Any]:
    return dict(read(FILES[0])["spec"]["containers"][0])


def strict(schema: Any) -> Any:
    """Return a schema that refuses fields which the API server would drop."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "x-kubernetes-preserve-unknown-fields" not in schema:
        kept.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        kept.pop("type", None)
    return kept


@pytest.mark.parametrize("file", FILES)
def test_the_manifests_are_valid_for_kserve(file: str) -> None:
    if not (folder := os.environ.get("KSERVE_CRDS")):
        pytest.skip("no KSERVE_CRDS: it names a copy of the folder config/crd/full of github.com/kserve/kserve")
    document = read(file)
    group, _, version = document["apiVersion"].partition("/")
    for path in Path(folder).glob("*_*s.yaml"):  # named GROUP_PLURAL; other files are patches
        definition = yaml.safe_load(path.read_text())
        if definition["spec"]["group"] == group and definition["spec"]["names"]["kind"] == document["kind"]:
            (schema,) = [item["schema"] for item in definition["spec"]["versions"] if item["name"] == version]
            jsonschema.validate(document, strict(schema["openAPIV3Schema"]))
            return
    pytest.fail(f"{folder}: no definition of {document['kind']}")


@pytest.mark.parametrize("file", FILES)
def test_kserves_client_reads_the_manifests(file: str) -> None:
    command = [kserve_python(), str(Path(__file__).with_name("kserve_classes.py")), str(KSERVE / file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_image_is_that_of_this_version() -> None:
    assert container()["image"] == f"horologe-server:{horologe.__version__}"
    assert "AS server\n" in (ROOT / "deploy" / "Dockerfile").read_text()


def test_the_example_names_the_runtime_and_its_ports() -> None:
    model = read(FILES[1])["spec"]["predictor"]["model"]
    assert model["runtime"] == read(FILES[0])["metadata"]["name"]
    formats = {item["name"] for item in read(FILES[0])["spec"]["supportedModelFormats"]}
    assert model["modelFormat"]["name"] in formats
    options = dict(argument.split("=", 1) for argument in container()["args"] if "=" in argument)
    ports = {int(options[option].rpartition(":")[2]) for option in ("--http", "--grpc")}
    assert {port["containerPort"] for port in model["ports"]} == ports


def test_the_command_serves_the_files_that_kserve_mounts(tmp_path: Path) -> None:
    mounted = tmp_path / "mnt" / "models"
    mounted.mkdir(parents=True)
    (mounted / "model.onnx").write_bytes(onnx_bytes())
    command, *arguments = container()["args"]
    assert (container()["command"], command) == (["horologe"], "up")
    given = [text.replace("{{.Name}}", "digits").replace("/mnt/models", str(mounted)) for text in arguments]
    addresses = ("--http=", "--grpc=", "--metrics=")
    up = Up(tmp_path, *[text for text in given if not text.startswith(addresses)], "--no-profiler")
    try:
        assert up.infer("digits", [[1, 2, 3, 4]]) == (200, [1, 2, 3, 4])
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert up.get(up.ready["http"] + container()[probe]["httpGet"]["path"])[0] == 200
    finally:
        assert up.stop(signal.SIGTERM) == 0
