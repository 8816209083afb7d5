"""mosec: a Rust HTTP server, and Python workers behind Unix sockets. JSON or raw bytes in both directions."""

import sys

import numpy as np
from mosec import Server, Worker
from work import Work, options

arguments = options()


class Json(Worker):
    def __init__(self) -> None:
        self.work = Work(arguments)

    def forward(self, data):
        y = self.work(np.array([item["x"] for item in data], np.float32))
        return [{"y": row.tolist()} for row in y]


class Raw(Worker):
    def __init__(self) -> None:
        self.work = Work(arguments)

    def deserialize(self, data: bytes) -> bytes:
        return data

    def serialize(self, data: bytes) -> bytes:
        return data

    def forward(self, data):
        return [row.tobytes() for row in self.work(np.frombuffer(b"".join(data), np.float32))]


if __name__ == "__main__":
    # mosec parses the command line
    sys.argv = [sys.argv[0], "--port", str(arguments.port), "--timeout", "60000", "--log-level", "warning"]
    server = Server()
    server.append_worker(
        Raw if arguments.dialect == "raw" else Json,
        num=arguments.workers,
        max_batch_size=arguments.max_batch,
        max_wait_time=round(arguments.batch_wait_ms),
    )
    server.run()
