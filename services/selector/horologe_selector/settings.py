"""Settings of the selector."""

from typing import Annotated

import msgspec
from msgspec import Meta

from horologe_common.clock import ms, s
from horologe_common.setting_ranges import NAME_PATTERN


class SelectorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prediction cache, state store, contexts and feedback."""

    name: Annotated[str, Meta(pattern=NAME_PATTERN)] = "0"
    """Instance name of this selector; it must be unique among the selectors."""
    cache_bytes: Annotated[int, Meta(ge=0)] = 64 << 20
    """Size limit of the prediction cache, with its keys and bookkeeping."""
    cache_ttl_ns: int = s(60)
    """Time to live of a cached prediction, unless the model sets its own."""
    store: str = "sqlite"
    """Store of applications and their learned states: `memory` (lost at a restart), `sqlite` (a file in `state`, for
    one selector) or `redis` (shared by several selectors)."""
    state: str = ".cache/horologe"
    """Folder of the SQLite file `selector-NAME.sqlite`."""
    redis: str = "redis://127.0.0.1:6379/0"
    """URL of Redis: `redis://`, `rediss://` or `unix://`. Acknowledged feedback is durable only if Redis runs with
    `appendonly yes` and `appendfsync always`."""
    contexts_memory: Annotated[int, Meta(ge=0)] = 20_000
    """Maximum number of context states in memory, for all applications; each takes about 1 kB. Other states are read
    from the store when a request needs them."""
    predictions: Annotated[int, Meta(ge=0)] = 100_000
    """Number of latest application answers that feedback can refer to by `prediction_id`."""
    unsaved: int = 10_000
    """Maximum number of observations waiting to be saved or predicted again. Further feedback is refused."""
    pipelines: str = ""
    """Folder of the pipelines, with `pipeline.toml` and the driver functions. Empty: none are served. `horologe up`
    sets it to `pipelines` in the model repository."""
    pipeline_runs: int = 1000
    """Maximum number of open queries of pipelines. Further ones are refused."""
    pipeline_step_ns: Annotated[int, Meta(ge=0)] = ms(8)
    """Maximum time that a driver may execute between two calls, in CPU time, or block. The query fails if it takes
    longer, since the other queries of its pipeline wait meanwhile. 0: no limit, except that a driver that leaves a ping
    unanswered for 1 s is started again."""
    pipeline_memory_bytes: Annotated[int, Meta(ge=0)] = 1 << 30
    """Maximum data segment of a driver's process. 0: no limit."""
    pipeline_staging_bytes: int = 256 << 20
    """Maximum size of all intermediate tensors that wait for workers. Further calls are refused."""
    pipeline_drop: bool = True
    """If true, a call's deadline leaves time for the stages after it, so that queries that would be late are dropped
    early."""
    pipeline_environment: tuple[str, ...] = ()
    """Names of further environment variables that drivers get, as `worker.model_environment` for models."""
    pipeline_user: str = ""
    """User that drivers run as, if the selector runs as root. Empty: the user of the selector."""
    streams: Annotated[int, Meta(ge=0)] = 1000
    """Maximum number of open streams. Further ones are refused."""
    losses: tuple[str, ...] = ()
    """Additional losses that applications can name, as `NAME=MODULE:FUNCTION`. The function gets (truth, value) and
    returns a loss from 0 to 1."""
