"""`horologe-gpu-worker`: one worker process for one device. Connects model store, worker core and lanes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from horologe_common.service.service import Service
from horologe_common.service.state_file import check_writable
from horologe_common.status import HorologeError
from horologe_gpu_worker.core.worker import Worker
from horologe_gpu_worker.device_shares import enter_share
from horologe_gpu_worker.execution.executors import Executors
from horologe_gpu_worker.fetching.mirror import Mirror
from horologe_gpu_worker.inspection.repository_scans import create_scans
from horologe_gpu_worker.repository.modelstore import ModelStore
from horologe_gpu_worker.repository.repository_watch import watch_repository, watched_source
from horologe_gpu_worker.settings import WorkerSettings, resolve_device

if TYPE_CHECKING:
    from horologe_common.transport.reactor import Reactor


def main() -> None:
    service = Service("worker")
    settings = service.settings(WorkerSettings, "worker")
    links = service.links(settings.name)
    address = links.address("worker", settings.name)
    try:
        check_writable(settings.cache, "worker.cache")
        entered = enter_share(settings)
        settings = resolve_device(msgspec.structs.replace(settings, share_percent=entered.percent))
        source = watched_source(settings) if settings.watch else None
        mirror = Mirror(settings.repository, Path(settings.cache), settings.fetch_timeout_ns)
        store = ModelStore(mirror.root, Path(settings.cache), settings=settings, mirror=mirror)
        reports = store.list_models()
    except HorologeError as error:
        service.reject(error)
    metrics = None
    if settings.cuda is not None:
        from horologe_gpu_worker.nvml import gpu_metrics  # only a worker with a GPU loads NVML

        metrics = gpu_metrics(settings.cuda)
    executors = Executors(address, settings, store, create_scans(settings, store))
    worker = Worker(address, settings, reports, store.inline_io, entered.device)

    def attach(reactor: Reactor) -> None:
        """Send the core's operations to the lane threads, and post their results to the core as messages."""
        reactor.attach(worker.lanes, executors.deliver)
        executors.start(reactor.post, reactor.post_threadsafe)

    async def watch(reactor: Reactor) -> None:
        assert source is not None
        await watch_repository(source, partial(reactor.post, worker.lanes, worker.address))

    try:
        start = [watch] if source is not None else []
        service.run([worker], links, follows_directory=True, start=start, prepare=attach, more_stats=metrics)
    finally:
        executors.stop()


if __name__ == "__main__":
    main()
