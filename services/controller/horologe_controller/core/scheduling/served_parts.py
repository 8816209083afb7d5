"""Weights of models by the part of their requests that is served: proportional fairness (`controller.fairness`)."""

from __future__ import annotations

FAIR_MEMORY = 1 - 1 / 256
"""Decay of `ServedParts` with each request of the model."""


class ServedParts:
    """Part of each model's recent requests that batches were formed of, for proportional fairness."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[float, float]] = {}
        """Model -> (requests that arrived, requests in batches), decayed with each arrival."""

    def record_arrivals(self, model: str, requests: int) -> None:
        arrived, served = self._counts.get(model, (0.0, 0.0))
        kept = FAIR_MEMORY**requests
        self._counts[model] = kept * arrived + requests, kept * served

    def record_batch(self, model: str, requests: int) -> None:
        arrived, served = self._counts[model]
        self._counts[model] = arrived, served + requests

    def weight(self, model: str) -> float:
        """Return what a request of the model counts: 1 / the part that is served.

        The sum over models of rate * ln(part) is largest where each batch is chosen by its weight for its time (Kelly,
        Maulloo and Tan, section 2). It goes to minus infinity as any part goes to 0.
        """
        arrived, served = self._counts.get(model, (0.0, 0.0))
        return (arrived + 1) / (served + 1)
