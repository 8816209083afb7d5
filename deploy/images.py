"""Builds the images of a release, with the same id whenever the same tree is built: make dist ARGS=--images

An engine writes the time of the build into the image and into its files. So every image is built, read with
`docker save`, and loaded again: times of files and of the image are at most `epoch`, and names of the containers of the
build are left out. Layers of the base image are kept as they are. The environment variables BASE_IMAGE and BUILD_IMAGE
are those of docker-compose.yml.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import tarfile
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
BASE = "python:3.11-slim"
TARGETS = ("edge", "worker", "server")
TIMES = ("mtime", "atime", "ctime")
SOURCE_HASH = re.compile(r"\b(file|dir|multi):[0-9a-f]{64}")
"""The classic builder writes this hash of the copied files, which contains their modes, into the history."""


def build_images(version: str, epoch: int) -> list[str]:
    """Build `horologe-TARGET:version` of each target. Return lines with the id and the name of each image."""
    base = os.environ.get("BASE_IMAGE", BASE)
    arguments = [f"--build-arg=BASE_IMAGE={base}", f"--build-arg=BUILD_IMAGE={os.environ.get('BUILD_IMAGE', base)}"]
    if not _docker("images", "-q", base):  # BuildKit does not keep the base image under its name
        _docker("pull", "-q", base)
    lines = []
    for target in TARGETS:
        name = f"horologe-{target}:{version}"
        _docker("build", "-q", "-f", "deploy/Dockerfile", "--target", target, "-t", name, *arguments, ".", cwd=ROOT)
        lines.append(f"{make_reproducible(name, base, epoch)}  {name}\n")
    return lines


def make_reproducible(name: str, base: str, epoch: int) -> str:
    """Replace the image `name` by one without traces of its build. Return its id. `epoch`: in seconds since 1970."""
    with tempfile.TemporaryDirectory() as temporary:
        saved, loaded = Path(temporary, "saved"), Path(temporary, "loaded.tar")
        saved.mkdir()
        archive = Path(temporary, "saved.tar")
        _docker("save", "-o", str(archive), name)
        subprocess.run(["tar", "-C", str(saved), "-xf", str(archive)], check=True)
        archive.unlink()
        _write_image(saved, loaded, name, _layers(base), epoch)
        _docker("load", "-q", "-i", str(loaded))
    return _docker("image", "inspect", "--format", "{{.Id}}", name)


def _write_image(saved: Path, target: Path, name: str, base_layers: list[str], epoch: int) -> None:
    (manifest,) = json.loads((saved / "manifest.json").read_text())
    config = json.loads((saved / manifest["Config"]).read_text())
    layers = config["rootfs"]["diff_ids"]
    kept = len(base_layers) if layers[: len(base_layers)] == base_layers else 0
    paths = [saved / layer for layer in manifest["Layers"]]
    for place in range(kept, len(paths)):
        paths[place] = _without_traces(paths[place], saved / f"{place}.tar", epoch)
        layers[place] = f"sha256:{_digest(paths[place])}"
    encoded = json.dumps(_without_build(config, epoch), sort_keys=True).encode()
    file = f"{hashlib.sha256(encoded).hexdigest()}.json"
    names = [f"{layer.partition(':')[2]}/layer.tar" for layer in layers]
    described = json.dumps([{"Config": file, "RepoTags": [name], "Layers": names}]).encode()
    with tarfile.open(target, "w") as tar:
        for path, layer in zip(paths, names, strict=True):
            tar.add(path, layer)
        for content, member_name in ((encoded, file), (described, "manifest.json")):
            member = tarfile.TarInfo(member_name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def _without_traces(layer: Path, target: Path, epoch: int) -> Path:
    """Copy a layer, with times of at most `epoch`, and without the umask of the checkout and the users of this host."""
    with tarfile.open(layer) as source, tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as copy:
        for member in source:
            member.mtime = min(int(member.mtime), epoch)
            member.pax_headers = {key: value for key, value in member.pax_headers.items() if key not in TIMES}
            member.uname = member.gname = ""
            content: IO[bytes] | None = None
            if member.isreg():
                member.mode &= ~0o022
                content = source.extractfile(member)
            copy.addfile(member, content)
    return target


def _without_build(config: dict[str, Any], epoch: int) -> dict[str, Any]:
    """Return the configuration of an image with times of at most `epoch`, and without the containers of its build."""
    latest = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    history = [
        step
        | {
            "created": min(step.get("created", latest), latest),
            "created_by": SOURCE_HASH.sub(r"\1", step.get("created_by", "")),
        }
        for step in config["history"]
    ]
    left_out = ("container", "container_config")
    changed = {key: value for key, value in config.items() if key not in left_out}
    settings = {key: value for key, value in config["config"].items() if key not in ("Hostname", "Image")}
    return changed | {"config": settings, "history": history, "created": latest}


def _layers(image: str) -> list[str]:
    return list(json.loads(_docker("image", "inspect", "--format", "{{json .RootFS.Layers}}", image)))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _docker(*arguments: str, cwd: Path | None = None) -> str:
    return subprocess.run(["docker", *arguments], cwd=cwd, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
