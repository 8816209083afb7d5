"""BentoML: Starlette with an adaptive batcher. JSON, or base64 of the bytes in JSON.

Run as a script, this file starts `bentoml serve` on itself.
"""

import base64
import os
import subprocess
import sys
from pathlib import Path

import bentoml
import numpy as np
from work import Work, options

arguments = options()
encoded = arguments.dialect == "base64-rows"
Rows = list[str] if encoded else list[list[float]]


@bentoml.service(workers=arguments.workers, traffic={"timeout": 60})
class Peer:
    def __init__(self) -> None:
        self.work = Work(arguments)

    @bentoml.api(
        batchable=True,
        max_batch_size=arguments.max_batch,
        # BentoML drops requests that it expects to exceed this; the other servers have no such limit
        max_latency_ms=60_000,
    )
    def predict(self, x: Rows) -> list[list[float]]:
        if encoded:
            rows = np.frombuffer(b"".join(base64.b64decode(item) for item in x), np.float32)
        else:
            rows = np.array(x, np.float32)
        return self.work(rows).tolist()


def main() -> int:
    path = Path(__file__).resolve()
    command = [str(Path(sys.executable).with_name("bentoml")), "serve", f"{path.stem}:Peer"]
    command += ["--working-dir", str(path.parent), "--host", "127.0.0.1", "--port", str(arguments.port)]
    return subprocess.run(command, env={**os.environ, "BENTOML_DO_NOT_TRACK": "True"}).returncode


if __name__ == "__main__":
    sys.exit(main())
