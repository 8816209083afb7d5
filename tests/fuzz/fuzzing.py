"""Mutations of known inputs, and the loop that checks them for a given time."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CORPUS = Path(__file__).parent / "corpus"
SECONDS = float(os.environ.get("FUZZ_SECONDS", "12"))
"""Time for all decoders together."""
EXAMPLES = 200
MAX_BYTES = 20_000


@st.composite
def mutated(draw: st.DrawFn, seeds: Sequence[bytes], tokens: Sequence[bytes]) -> bytes:
    """Return a seed with up to eight changes: bytes or tokens added, removed, replaced, repeated, or from another."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 8))):
        begin = draw(st.integers(0, len(data)))
        end = min(len(data), begin + draw(st.integers(0, 12)))
        match draw(st.integers(0, 4)):
            case 0:
                data[begin:begin] = draw(st.sampled_from(tokens))
            case 1:
                del data[begin:end]
            case 2:
                data[begin:end] = draw(st.binary(max_size=8))
            case 3:
                data[begin:begin] = bytes(data[begin:end]) * draw(st.sampled_from((1, 2, 50)))
            case _:
                data[begin:] = draw(st.sampled_from(seeds))[begin:]
    return bytes(data[:MAX_BYTES])


def fuzz(name: str, check: Callable[[bytes], None], tokens: Sequence[bytes], share: float) -> None:
    """Check the corpus `name`, and mutations of it for this share of `SECONDS`.

    Hypothesis reports the smallest input for which `check` raises. Add it to the corpus once the fault is mended.
    """
    seeds = [file.read_bytes() for file in sorted((CORPUS / name).iterdir())]
    for data in seeds:
        check(data)
    end_s = time.monotonic() + SECONDS * share
    number = time.time_ns() if SECONDS > 30 else 0
    while time.monotonic() < end_s:
        number += 1
        run = given(mutated(seeds, tokens))(lambda data: check(data))
        options = settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        seed(number)(options(run))()
