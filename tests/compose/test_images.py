"""The images of a release: two builds of one tree give one image, and that of all services runs the demo."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from compose.engine import require_engine
from compose.stack import ROOT, base_images
from harness.scripts import load_script

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.compose, pytest.mark.slow, pytest.mark.timeout(900)]

EPOCH = 1_700_000_000
SERVER = "horologe-server:test"
NAME = "horologe-reproducible:test"
DOCKERFILE = """
ARG BASE_IMAGE
FROM $BASE_IMAGE AS first
RUN mkdir /made && echo text >/made/file && ln /made/file /made/linked && chown -R 1000:1000 /made
FROM $BASE_IMAGE
COPY copied /copied/file
COPY --from=first /made /made
RUN rm /etc/issue && ln -s /made /symbolic
CMD ["cat", "/symbolic/linked"]
"""


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def base() -> str:
    require_engine()
    return base_images().get("BASE_IMAGE", "python:3.11-slim")


def test_two_builds_give_the_same_image(base: str, tmp_path: Path) -> None:
    images: Any = load_script("deploy/images.py", "deploy_images")
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    ids = []
    try:
        for number in (1, 2):
            (tmp_path / "copied").write_text("text")
            os.utime(tmp_path / "copied", (EPOCH + number, EPOCH + number))
            (tmp_path / "copied").chmod(0o644 if number == 1 else 0o664)
            built = docker("build", "-q", "--no-cache", f"--build-arg=BASE_IMAGE={base}", "-t", NAME, str(tmp_path))
            ids.append(images.make_reproducible(NAME, base, EPOCH))
            assert ids[-1] != built
            docker("rmi", built)
        assert ids[0] == ids[1]
        assert docker("run", "--rm", NAME) == "text"
        assert docker("run", "--rm", NAME, "stat", "-c", "%Y %u", "/made/file") == f"{EPOCH} 1000"
        layers = json.loads(docker("image", "inspect", "--format", "{{json .RootFS.Layers}}", base))
        assert json.loads(docker("image", "inspect", "--format", "{{json .RootFS.Layers}}", NAME))[:1] == layers[:1]
    finally:
        docker("rmi", "-f", NAME)


def test_the_image_of_all_services_runs_the_demo(base: str) -> None:
    build = base_images().get("BUILD_IMAGE", base)
    arguments = (f"--build-arg=BASE_IMAGE={base}", f"--build-arg=BUILD_IMAGE={build}")
    try:
        docker(
            "build", "-q", "-f", f"{ROOT}/deploy/Dockerfile", "--target", "server", *arguments, "-t", SERVER, str(ROOT)
        )
        options = ("--json", "--learn", "2", "--step", "0.3")
        command = ["docker", "run", "--rm", SERVER, "horologe", "demo", *options]
        demo = subprocess.run(command, capture_output=True, text=True, check=False)
        result = json.loads(demo.stdout)
        assert {entry["via"] for entry in result["accuracies"]} == {"SDK", "HTTP"}
        assert all(entry["correct"] >= 0.9 * entry["images"] for entry in result["accuracies"])
        assert result["criteria"]
    finally:
        docker("rmi", "-f", SERVER)
