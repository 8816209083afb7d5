"""Builds the files of a release into build/dist: make dist

These are the sdist, the wheel for every platform, the wheel with a compiled controller, the Helm chart, an SBOM
(CycloneDX) of `pip install horologe[server]` with tested versions, and SHA256SUMS. The wheels are built from the sdist.

All times in the files are that of the commit, or SOURCE_DATE_EPOCH. So two builds of a commit give the same sdist,
wheel for every platform, chart and SBOM. `--no-compiled` leaves out the compiled wheel, which takes three minutes and
needs a C compiler. `--images` also builds the images edge, worker and server, and writes their ids to IMAGES.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "build" / "dist"
CHART = ROOT / "deploy" / "helm" / "horologe"
HELM = ROOT / ".cache" / "helm"


def commit_time() -> int:
    """Return SOURCE_DATE_EPOCH, else the time of the commit, in seconds since 1970."""
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(epoch)
    command = ["git", "log", "-1", "--format=%ct"]
    return int(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)


def build_sdist(source: Path, folder: Path, epoch: int) -> Path:
    """Build the sdist of the tree `source` into `folder`. Return its path."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)]
    subprocess.run(command, cwd=source, check=True, env=_environment(epoch), stdout=subprocess.DEVNULL)
    return next(folder.glob("horologe-*.tar.gz"))


def build_wheel(sdist: Path, folder: Path, epoch: int, *, compiled: bool = False) -> None:
    """Build a wheel from an sdist into `folder`. `compiled`: for this platform and version of Python."""
    environment = _environment(epoch)
    if compiled:  # mypyc is changed by the build hook, so it must not be compiled itself
        environment |= {"HATCH_BUILD_HOOK_ENABLE_CUSTOM": "true", "PIP_NO_BINARY": "mypy"}
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(sdist)]
    subprocess.run(command, check=True, env=environment)


def package_chart(folder: Path, epoch: int) -> None:
    """Package the Helm chart. Without helm, print that the chart is left out."""
    if not (helm := shutil.which("helm") or fetch_helm()):
        print("no helm could be fetched: the chart is not packaged", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as temporary:
        command = [helm, "package", str(CHART), "-d", temporary]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        archive = next(Path(temporary).glob("*.tgz"))
        folder.joinpath(archive.name).write_bytes(with_time(archive.read_bytes(), epoch))


def fetch_helm() -> str:
    """Return the path of a fetched helm. Empty if it cannot be fetched."""
    done = subprocess.run([sys.executable, str(ROOT / "deploy" / "helm" / "fetch_helm.py"), str(HELM)], check=False)
    return "" if done.returncode else str(HELM / "helm")


def with_time(archive: bytes, epoch: int) -> bytes:
    """Return a .tgz with the time of every member set to `epoch`, since helm writes the time of the build."""
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as source,
        gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=epoch) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as target,
    ):
        for member in sorted(source.getmembers(), key=lambda member: member.name):
            member.mtime, member.pax_headers = epoch, {}
            target.addfile(member, source.extractfile(member))
    return packed.getvalue()


def write_sbom(wheel: Path, folder: Path) -> None:
    """Install `wheel[server]` into a clean environment, and list what it holds."""
    with tempfile.TemporaryDirectory() as temporary:
        venv.create(temporary, with_pip=False)
        python = f"{temporary}/bin/python"
        requirement = f"horologe[server] @ {wheel.as_uri()}"
        install = [
            "-m",
            "pip",
            "--python",
            python,
            "install",
            "-q",
            "--no-compile",
            "-c",
            str(ROOT / "constraints.txt"),
        ]
        subprocess.run([sys.executable, *install, requirement], check=True)
        bom = folder / f"{wheel.name.partition('-py3')[0]}.cdx.json"
        options = ["--output-reproducible", "--pyproject", str(ROOT / "pyproject.toml"), "-o", str(bom)]
        subprocess.run([sys.executable, "-m", "cyclonedx_py", "environment", *options, python], check=True)
        # The environment's path is a temporary one.
        bom.write_text(bom.read_text().replace(wheel.parent.as_uri() + "/", ""))


def write_sums(folder: Path) -> None:
    """Write SHA256SUMS of all files, in the format of sha256sum."""
    files = sorted(path for path in folder.iterdir() if path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    folder.joinpath("SHA256SUMS").write_text("".join(lines))


def _environment(epoch: int) -> dict[str, str]:
    return {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}


def main() -> None:
    """Build everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-compiled", action="store_true", help="leave out the compiled wheel")
    parser.add_argument("--images", action="store_true", help="also build images, with a Docker engine")
    options = parser.parse_args()
    epoch = commit_time()
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir(parents=True)
    sdist = build_sdist(ROOT, DIST, epoch)
    build_wheel(sdist, DIST, epoch)
    if not options.no_compiled:
        build_wheel(sdist, DIST, epoch, compiled=True)
    package_chart(DIST, epoch)
    write_sbom(next(DIST.glob("*-none-any.whl")), DIST)
    if options.images:
        from images import build_images  # a script beside this one

        version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
        DIST.joinpath("IMAGES").write_text("".join(build_images(version, epoch)))
    write_sums(DIST)
    sys.stdout.write((DIST / "SHA256SUMS").read_text())


if __name__ == "__main__":
    main()
