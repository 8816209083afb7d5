"""LitServe: FastAPI, and model workers behind queues. JSON, or base64 of the bytes in JSON."""

import base64

import litserve as ls
import numpy as np
from work import Work, options

arguments = options()


class Api(ls.LitAPI):
    def setup(self, device: str) -> None:
        self.work = Work(arguments)

    def decode_request(self, request):
        if arguments.dialect == "base64":
            return np.frombuffer(base64.b64decode(request["x"]), np.float32)
        return np.array(request["x"], np.float32)

    def batch(self, inputs):
        return np.stack(inputs)

    def predict(self, x):
        return self.work(x)

    def unbatch(self, output):
        return list(output)

    def encode_response(self, output):
        return {"y": np.asarray(output).ravel().tolist()}


if __name__ == "__main__":
    api = Api(max_batch_size=arguments.max_batch, batch_timeout=arguments.batch_wait_ms / 1e3)
    server = ls.LitServer(api, accelerator="cpu", workers_per_device=arguments.workers, timeout=60)
    server.run(host="127.0.0.1", port=arguments.port, log_level="warning", generate_client_file=False)
