"""Ray Serve: an HTTP proxy and replicas as actors. JSON, or the tensor's raw bytes."""

import threading

import numpy as np
from ray import serve
from starlette.requests import Request
from starlette.responses import Response
from work import Work, options

arguments = options()


@serve.deployment(num_replicas=arguments.workers, max_ongoing_requests=1000, ray_actor_options={"num_cpus": 0.5})
class Peer:
    def __init__(self) -> None:
        self.work = Work(arguments)

    @serve.batch(max_batch_size=arguments.max_batch, batch_wait_timeout_s=arguments.batch_wait_ms / 1e3)
    async def rows(self, inputs: list) -> list:
        return list(self.work(np.stack(inputs)))

    async def __call__(self, request: Request):
        if arguments.dialect == "raw":
            y = await self.rows(np.frombuffer(await request.body(), np.float32))
            return Response(y.tobytes(), media_type="application/octet-stream")
        y = await self.rows(np.array((await request.json())["x"], np.float32))
        return {"y": y.tolist()}


if __name__ == "__main__":
    serve.start(http_options={"host": "127.0.0.1", "port": arguments.port})
    serve.run(Peer.bind(), route_prefix="/")
    threading.Event().wait()
