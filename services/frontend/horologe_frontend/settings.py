"""Settings of the frontend."""

from typing import Annotated

import msgspec
from msgspec import Meta

from horologe_common.clock import ms, s
from horologe_common.setting_ranges import NAME_PATTERN
from horologe_common.transport.clients.client_server import ClientLimits
from horologe_common.transport.sockets import LinkSettings

PACKET_BYTES = 4 << 20
"""The SDK sends several requests in one packet of at most this size."""
RECEIVED_REQUESTS = 4
"""Requests of the largest size that may be arriving at once. One client gets at most half of what is free."""
UNSENT_BYTES, UNSENT_FRAMES, MESSAGES_BYTES = 520 << 20, 2, 8 << 20
"""Answers that clients have not read: at least twice the largest frame, and some more for messages. One client gets at
most half of what is free, so that outputs of the largest size still reach it."""


class FrontendSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Client endpoints, limits and timeouts of a frontend."""

    name: Annotated[str, Meta(pattern=NAME_PATTERN)] = "0"
    """Name of this frontend. Each of several frontends needs a different name."""
    clients: tuple[str, ...] = ("tcp://127.0.0.1:8003",)
    """ZeroMQ endpoints for clients."""
    reuse_port: bool = False
    """Share the ports of `clients` and of HTTP with other frontends of this machine that set it too (SO_REUSEPORT): the
    kernel spreads connections over them. They need the same user."""
    client_management: bool = True
    """Accept messages of SDK clients that load or unload models, or that declare, withdraw or restore applications."""
    grace_ns: Annotated[int, Meta(ge=0)] = ms(50)
    """Time after the deadline in which a request may still be answered as LATE with its outputs. Then it is answered
    without outputs."""
    best_effort_ns: int = s(30)
    """Timeout of a request without a deadline."""
    max_pending: int = 20_000
    """Maximum number of open requests. Further requests are refused. One client gets at most as many as are then left
    for the others."""
    max_request_bytes: int = 64 << 20
    """Maximum size of a request's tensors. Larger requests are answered TOO_LARGE. A smaller `links.max_frame_bytes`
    applies instead."""
    staging_bytes: int = 1 << 30
    """Maximum size of all staged tensors together. Requests beyond it are refused. One client gets at most as much as
    is then left for the others."""
    load_timeout_ns: int = s(600)
    """Timeout of repository loads. A load constructs the model and measures every batch size."""
    ready_wait_ns: Annotated[int, Meta(ge=0)] = s(300)
    """Longest time after a start for which `/v2/health/ready` waits until all workers have registered and no model is
    loading. A model stops loading when it is READY, has failed, or its `load_timeout` has passed. 0: do not wait."""
    default_lead_ns: Annotated[int, Meta(ge=0)] = ms(2)
    """An application's default answer is sent at least this long before the deadline if the selector has not answered.
    The lead grows to the 99th percentile of recent timer delays, up to a quarter of the request's budget. The selector
    gets the budget without the lead."""
    sample_ns: Annotated[int, Meta(ge=0)] = s(1)
    """Interval between two samples of each model and application that are sent to the profiler. 0: no samples."""


def fit_frames(settings: FrontendSettings, max_frame_bytes: int) -> FrontendSettings:
    """Return the settings with requests whose inputs workers accept."""
    return msgspec.structs.replace(settings, max_request_bytes=min(settings.max_request_bytes, max_frame_bytes))


def client_limits(settings: FrontendSettings, links: LinkSettings) -> ClientLimits:
    """Return the bounds of the connections of clients."""
    return ClientLimits(
        settings.client_management,
        links.max_connections,
        max(PACKET_BYTES, settings.max_request_bytes),
        RECEIVED_REQUESTS * settings.max_request_bytes,
        max(UNSENT_BYTES, UNSENT_FRAMES * links.max_frame_bytes + MESSAGES_BYTES),
        settings.reuse_port,
    )
