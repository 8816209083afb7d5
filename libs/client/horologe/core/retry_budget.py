"""The retry budget of a client: a share of its requests may be sent a second time.

A token bucket, as in Finagle and gRPC: each request adds the share of a token, each retry takes a token. Retries never
multiply the load of a server that fails all requests.
"""

from __future__ import annotations

from horologe_common.status import InvalidInput

RETRY_SHARE = 0.1
FULL = 10.0
"""Tokens at the start, and at most: a client that has sent few requests, or all in one burst, may retry so many."""


class RetryBudget:
    """Counts tokens. `share`: retries per request, between 0 (never) and 1. Raises `InvalidInput`."""

    def __init__(self, share: float = RETRY_SHARE) -> None:
        if not 0 <= share <= 1:
            raise InvalidInput(f"retry_budget: got {share!r}, wanted a share between 0 and 1")
        self._share = share
        self._tokens = FULL if share else 0.0

    def add_request(self) -> None:
        """Count a request."""
        self._tokens = min(FULL, self._tokens + self._share) if self._share else 0.0

    def take_retry(self) -> bool:
        """Return whether a retry is allowed, and count it."""
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
