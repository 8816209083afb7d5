"""Environment of a Python model: the worker's, an interpreter by its path, or a virtual environment of its own.

A virtual environment lies in the worker's cache under a name of its requirements and its Python. It is complete once
it has the file `READY`. The worker adds its own packages to the path of the model's process, and msgspec and numpy
where the environment lacks them.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from horologe_common.service.processes import child_environment, user_options, user_variables
from horologe_gpu_worker.file_lock import lock_file
from horologe_gpu_worker.repository.manifest import InvalidModel
from horologe_gpu_worker.runtimes.python.requirements_file import read_requirements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from horologe_gpu_worker.repository.manifest_fields import Manifest
    from horologe_gpu_worker.runtimes.python.requirements_file import RequirementsFile
    from horologe_gpu_worker.settings import WorkerSettings

ENVIRONMENTS, PIP_CACHE, READY = "environments", "pip", "ready.json"
OWN_PACKAGES = ("horologe_common", "horologe_gpu_worker")
NEEDED_PACKAGES = ("msgspec", "numpy")
PYTHON_MIN = (3, 11)
WORKER_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
"""Variables that would lead another interpreter to the worker's packages."""
PROBE = f"""
import importlib.util, json, sys, sysconfig
lacking = [name for name in {NEEDED_PACKAGES!r} if importlib.util.find_spec(name) is None]
print(json.dumps([sys.version_info[:2], sysconfig.get_config_var("SOABI") or "", lacking]))
"""
PROBE_S, LOCK_POLL_S = 60.0, 0.1
PROGRESS = ("Collecting", "Downloading", "Installing")
"""First words of the lines of pip that are reported."""
ERROR_CHARACTERS, ERROR_LINES = 1500, 12


class Interpreter(NamedTuple):
    """What an interpreter says about itself."""

    version: tuple[int, int]
    abi: str
    lacking: tuple[str, ...]
    """Needed packages that it does not have."""


_decode_interpreter = msgspec.json.Decoder(Interpreter).decode


class ModelEnvironment(NamedTuple):
    """Interpreter of a model's process, and the folder in its PYTHONPATH. Both are empty for the worker's own."""

    python: str = ""
    packages: str = ""

    def variables(self, variables: dict[str, str]) -> dict[str, str]:
        """Return the environment variables of the process."""
        if not self.python:
            return variables
        kept = {name: value for name, value in variables.items() if name not in WORKER_VARIABLES}
        return kept | {"PYTHONPATH": self.packages}


def find_environment(folder: Path, manifest: Manifest, settings: WorkerSettings) -> ModelEnvironment:
    """Return the environment of a version. Does not make it.

    Raises `InvalidModel` if it does not exist, or its interpreter cannot run the model's process.
    """
    if not (manifest.python or manifest.requirements):
        return ModelEnvironment()
    python, interpreter = manifest.python, _interpreter(manifest, settings)
    if manifest.requirements:
        place = _place(read_requirements(folder, manifest.requirements), manifest, interpreter, settings)
        try:
            interpreter = _decode_interpreter((place / READY).read_bytes())
        except OSError:
            name = folder.parent.name
            raise InvalidModel(f"{place}: got no environment there: run `horologe load {name}` to make it") from None
        python = str(place / "bin" / "python")
    _check_interpreter(python, interpreter, manifest)
    return ModelEnvironment(python, _link_packages(Path(settings.cache).absolute() / ENVIRONMENTS, interpreter.lacking))


def make_environment(folder: Path, manifest: Manifest, settings: WorkerSettings, report: Callable[[str], None]) -> None:
    """Make the environment of a version unless it exists. `report` receives the progress.

    Blocks while another process makes it. Raises `InvalidModel` naming the line that cannot be installed.
    """
    if manifest.requirements:
        requirements = read_requirements(folder, manifest.requirements)
        place = _place(requirements, manifest, _interpreter(manifest, settings), settings)
        with _lock(place, report):
            if not (place / READY).is_file():
                _install(place, requirements, manifest.python or sys.executable, settings, report)
    find_environment(folder, manifest, settings)


def _place(
    requirements: RequirementsFile, manifest: Manifest, interpreter: Interpreter, settings: WorkerSettings
) -> Path:
    """Return the folder of a virtual environment."""
    python = os.path.realpath(manifest.python or sys.executable)
    digest = hashlib.blake2b(digest_size=16)
    digest.update(b"\0".join((requirements.content, python.encode(), interpreter.abi.encode())))
    return Path(settings.cache).absolute() / ENVIRONMENTS / digest.hexdigest()


def _install(
    place: Path, requirements: RequirementsFile, python: str, settings: WorkerSettings, report: Callable[[str], None]
) -> None:
    """Make a virtual environment. What is left of an attempt that was killed is removed first."""
    if importlib.util.find_spec("pip") is None:
        raise InvalidModel(
            f"{requirements.path}: got no pip in the worker's Python ({sys.executable}), wanted pip there"
        )
    shutil.rmtree(place, ignore_errors=True)
    report(f"making the environment of {requirements.path}")
    target = place / "bin" / "python"
    _run_pip([python, "-m", "venv", "--without-pip", str(place)], place, requirements, report)
    options = ("--only-binary", ":all:", "--no-input", "--disable-pip-version-check", "--progress-bar", "off")
    cache = str(place.parent / PIP_CACHE)
    pip = [sys.executable, "-m", "pip", "--python", str(target), "install", *options, "--cache-dir", cache]
    _run_pip([*pip, "--requirement", str(requirements.path.absolute())], place, requirements, report)
    interpreter = _probe(str(target), settings.model_user)
    partial = place / f"{READY}.partial"
    partial.write_bytes(msgspec.json.encode(interpreter))
    partial.rename(place / READY)


def _run_pip(
    command: Sequence[str], place: Path, requirements: RequirementsFile, report: Callable[[str], None]
) -> None:
    """Run a command in the worker's environment, which has the settings of pip. Raises `InvalidModel` if it fails."""
    variables = {name: value for name, value in os.environ.items() if name not in WORKER_VARIABLES}
    process = subprocess.Popen(
        command,
        cwd=place.parent,
        env=variables | {"PYTHONUTF8": "1"},  # pip must read what `read_requirements` has checked
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = []
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip())
            if line.startswith(PROGRESS):
                report(f"installing {requirements.path.name}: {lines[-1]}")
    if process.returncode:
        first = next((index for index, line in enumerate(lines) if line.startswith("ERROR:")), -ERROR_LINES)
        reason = "; ".join(line.strip() for line in lines[first:][:ERROR_LINES])[:ERROR_CHARACTERS]
        raise InvalidModel(f"{requirements.place_of(reason)}: {reason or f'exit code {process.returncode}'}")


@contextmanager
def _lock(place: Path, report: Callable[[str], None]) -> Iterator[None]:
    """Wait until no other process makes this environment. The lock ends with this process."""
    waits = False
    while (lock := lock_file(place.with_suffix(".lock"))) is None:
        if not waits:
            report("waiting for another process that makes its environment")
        waits = True
        time.sleep(LOCK_POLL_S)
    try:
        yield
    finally:
        os.close(lock)


def _interpreter(manifest: Manifest, settings: WorkerSettings) -> Interpreter:
    """Return the interpreter that `python` names; the worker's own if it is empty."""
    if not manifest.python:
        return Interpreter(sys.version_info[:2], _abi(), ())
    try:
        changed_ns = os.stat(manifest.python).st_mtime_ns
    except OSError as error:
        raise InvalidModel(f"python: got {manifest.python!r}, wanted an interpreter: {error.strerror}") from error
    return _known_interpreter(manifest.python, settings.model_user, changed_ns)


@lru_cache(maxsize=256)
def _known_interpreter(python: str, user: str, changed_ns: int) -> Interpreter:
    """Probe an interpreter once for each time at which its file was changed."""
    return _probe(python, user)


def _probe(python: str, user: str) -> Interpreter:
    """Run an interpreter as the user of the models. Raises `InvalidModel` if it does not answer."""
    variables = ModelEnvironment(python).variables(child_environment(os.environ, 1)) | user_variables(user)
    try:
        result = subprocess.run(
            [python, "-c", PROBE],
            **user_options(user),
            cwd="/",
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROBE_S,
        )
        if result.returncode:
            raise ValueError(result.stderr.strip()[-ERROR_CHARACTERS:] or f"exit code {result.returncode}")
        return _decode_interpreter(result.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
        wanted = f"an interpreter of Python {PYTHON_MIN[0]}.{PYTHON_MIN[1]} or later"
        raise InvalidModel(f"python: got {python!r}, wanted {wanted}: {error}") from error


def _check_interpreter(python: str, interpreter: Interpreter, manifest: Manifest) -> None:
    if interpreter.version < PYTHON_MIN:
        got, wanted = (".".join(map(str, version)) for version in (interpreter.version, PYTHON_MIN))
        raise InvalidModel(f"python: {python}: got Python {got}, wanted {wanted} or later")
    if interpreter.lacking and interpreter.abi != _abi():
        where = manifest.requirements or "its environment"
        raise InvalidModel(
            f"python: {python}: got no {' and '.join(interpreter.lacking)}, wanted them in {where}: the worker adds "
            f"its own only to a Python of the same kind ({_abi()}), got {interpreter.abi}"
        )


def _abi() -> str:
    return str(sysconfig.get_config_var("SOABI") or "")


def _link_packages(environments: Path, lacking: Sequence[str]) -> str:
    """Return a folder with links to the worker's own packages, and to those that an environment lacks."""
    targets = [Path(str(importlib.import_module(name).__file__)).parent for name in OWN_PACKAGES]
    for name in lacking:
        files = importlib.metadata.distribution(name).files or ()
        root = Path(str(importlib.import_module(name).__file__)).parent.parent
        targets += [root / entry for entry in sorted({file.parts[0] for file in files} - {"..", "__pycache__"})]
    key = hashlib.blake2b("\0".join(map(str, targets)).encode(), digest_size=8).hexdigest()
    place = environments / f"packages-{key}"
    if not place.is_dir():
        made = environments / f".packages-{key}-{os.getpid()}"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        for target in targets:
            (made / target.name).symlink_to(target)
        with suppress(OSError):  # another process was faster
            made.rename(place)
        shutil.rmtree(made, ignore_errors=True)
    return str(place)
