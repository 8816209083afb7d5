"""Links to the other services: what changes when one connects or disconnects, and which of them can still answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.core.protocol import role
from horologe_frontend.core.requests import default_answer, timeout_answer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horologe_common.core.protocol import Buffer, Out, PeerConnected
    from horologe_common.core.staging import StagedInputs
    from horologe_common.wire import Answer
    from horologe_frontend.core.forwarding import CallForwarder
    from horologe_frontend.core.links.selector_routing import SelectorRouter
    from horologe_frontend.core.links.settling import Settling
    from horologe_frontend.core.requests import ClientRequest, OpenRequests
    from horologe_frontend.core.retained_inputs import RetainedInputs
    from horologe_frontend.core.sampling import RequestSampler

PEER_ROLES = ("selector", "controller", "worker", "profiler", "tuner")


class PeerLinks:
    """The connected selectors, controller, workers, profiler and tuner. Clients are not peers."""

    def __init__(
        self,
        requests: OpenRequests,
        retained_inputs: RetainedInputs,
        staging: StagedInputs,
        selectors: SelectorRouter,
        calls: CallForwarder,
        sampler: RequestSampler,
        settling: Settling,
    ) -> None:
        self._requests = requests
        self._retained_inputs = retained_inputs
        self._staging = staging
        self._selectors = selectors
        self._calls = calls
        self._sampler = sampler
        self._settling = settling

    def connect(self, peer: PeerConnected) -> Iterable[Out]:
        """Use a peer from now on. Return the inputs that wait for it if it is a worker."""
        address = peer.address
        match role(address):
            case "selector":
                self._calls.connect_selector(address)
                self._selectors.add_selector(address)
            case "controller":
                self._calls.connect_controller(address)
            case "profiler":
                self._sampler.profiler = address
            case "worker":
                return self._staging.add_worker(address, peer.max_frame_bytes)
            case "tuner":
                self._calls.tuner = address
        return ()

    def disconnect(self, address: str) -> Iterable[Out]:
        """Remove a peer. Return LOST for the calls that it has not answered. Its requests wait for their timers."""
        self._calls.disconnect_peer(address)
        match role(address):
            case "selector":
                self._selectors.remove_selector(address)
                self._retained_inputs.release_selector(address)
                return self._calls.fail_selector(address)
            case "controller":
                self._settling.remove_controller(address)
                if address == self._calls.controller:
                    self._calls.controller = ""
                    self._requests.mark_dispatched()
            case "worker":
                self._staging.remove_worker(address)
            case "profiler":
                self._sampler.remove_profiler(address)
            case "tuner":
                return self._calls.disconnect_tuner(address)
        return ()

    def answer_timeout(self, request: ClientRequest) -> tuple[Answer, Sequence[Buffer]]:
        """Return the answer to a request whose timer has expired: its default, or that of `timeout_answer`."""
        if default := default_answer(request):
            return default
        has_selector = request.selector in self._selectors if request.selector else bool(self._selectors)
        in_driver = request.worker == request.selector and request.worker in self._selectors
        workers = [request.worker] if in_driver else self._staging.workers
        return timeout_answer(request, workers, has_selector and bool(self._calls.controller)), ()
