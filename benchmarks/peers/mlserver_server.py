"""MLServer: FastAPI, Open Inference Protocol v2, adaptive batching.

Run as a script, this file writes a model folder and starts `mlserver start` on it.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse
from work import Work, options


class Peer(MLModel):
    async def load(self) -> bool:
        self.work = Work(options())
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        x = NumpyCodec.decode_input(payload.inputs[0]).astype(np.float32)
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("y", self.work(x))])


def main() -> int:
    arguments = options()
    here = Path(__file__).resolve().parent
    with tempfile.TemporaryDirectory() as folder:
        model = {"name": "peer", "implementation": "mlserver_server.Peer"}
        model |= {"max_batch_size": arguments.max_batch, "max_batch_time": arguments.batch_wait_ms / 1e3}
        settings = {"host": "127.0.0.1", "http_port": arguments.port, "grpc_port": arguments.port + 1}
        settings |= {"metrics_port": arguments.port + 2, "debug": False, "use_structured_logging": False}
        settings |= {"parallel_workers": arguments.workers if arguments.workers > 1 else 0}
        Path(folder, "model-settings.json").write_text(json.dumps(model))
        Path(folder, "settings.json").write_text(json.dumps(settings))
        environment = {**os.environ, "PYTHONPATH": str(here)}
        command = [str(Path(sys.executable).with_name("mlserver")), "start", folder]
        return subprocess.run(command, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
