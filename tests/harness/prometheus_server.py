"""A Prometheus that scrapes the processes of `horologe up`. Debian's package `prometheus` has the binary."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from harness.http_calls import send_http
from harness.waiting import until

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "deploy" / "grafana"))
RULES = ROOT / "deploy" / "prometheus" / "rules" / "horologe.yml"
BINARY = shutil.which("prometheus")
MISSING = "prometheus is not installed (Debian package prometheus)"
START_S = 30.0


class Prometheus:
    """Scrapes every URL of `targets` (by process) once per interval. The jobs are those of deploy/prometheus."""

    def __init__(self, folder: Path, targets: Mapping[str, str], *flags: str, interval_s: int = 1) -> None:
        assert BINARY is not None
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        folder.mkdir(exist_ok=True)
        hosts = {name: url.split("/")[2] for name, url in targets.items()}
        workers = [host for name, host in hosts.items() if name.startswith("worker")]
        others = [host for name, host in hosts.items() if not name.startswith("worker")]
        config = {
            "global": {"scrape_interval": f"{interval_s}s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [
                {"job_name": "horologe", "static_configs": [{"targets": others}]},
                {"job_name": "horologe-gpu-worker", "static_configs": [{"targets": workers}]},
            ],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self.url = f"http://127.0.0.1:{port}"
        self._log = (folder / "log").open("w+")
        self._process = subprocess.Popen(
            [
                BINARY, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{port}", *flags,
            ],
            stdout=self._log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        until(self._is_ready, START_S, (OSError,), 0.1)

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, self.read_log()
        return send_http("GET", f"{self.url}/-/ready")[0] == 200

    def read_log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()
