"""What a client may use: the scopes and the rates of keys. HTTP, gRPC and the SDK ask the same `Access`.

A bearer key and a key of the SDK with the same name share one entry, and its rate.
"""

from __future__ import annotations

import hashlib
import re
from enum import Enum
from fnmatch import translate
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from horologe_common import wire
from horologe_common.status import Forbidden, Refused, Unauthenticated

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_common.core.instruments import Stats

HASH_PREFIX = "sha256:"
SHOWN = 80
"""Characters of a name in the reason of an error."""
KEY_COUNTERS = "horologe_key_"
COUNTED_KEYS = 256
"""Keys with counters of their own: the first of the key file. The others are added up as the key `OTHER_KEYS`."""
OTHER_KEYS = "other"


class Scope(Enum):
    """What a call needs."""

    KEY = "a key"
    """Any accepted key."""
    INFER = "infer"
    """Requests and feedback. Names the model, pipeline or application."""
    READ = "infer or observe"
    """The signature and the readiness of a model, which its clients need."""
    OBSERVE = "observe"
    MANAGE = "manage"


class KeyEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of the key file: `[keys.NAME]`. What is left out is not permitted."""

    hashes: tuple[Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")], ...] = ()
    """SHA-256 of each accepted bearer key, as `sha256:<hex>`. None: an entry for a key of the SDK only."""
    infer: tuple[str, ...] = ()
    """Names of models, pipelines and applications that it may use. Patterns of the shell: `*` is any text."""
    observe: bool = False
    """It may read the state of all models and applications, statistics, and the console."""
    manage: bool = False
    """It may load and unload models, change applications, and apply plans."""
    upload: bool = False
    """With `manage`: it may also load models with a configuration and files of its own, which are programs. So it can
    run any code on the workers. Not permitted without keys."""
    rate: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    """Requests per second. None: no limit."""
    burst: Annotated[float, Meta(ge=1, le=1e9)] | None = None
    """Requests that it may send at once after a pause. None: those of one second."""


class KeysReplaced(msgspec.Struct, frozen=True):
    """Event from the host, never sent over a socket: the key file has changed.

    Recordings have it with names, scopes, rates and hashes, so that a replay decides as the frontend did.
    """

    entries: tuple[tuple[str, KeyEntry], ...]
    """All entries of the file, by name."""


class TokenBucket:
    """Permits `rate` requests per second, and up to `burst` at once after a pause."""

    def __init__(self, rate: float, burst: float | None = None) -> None:
        self.rate = rate
        self.burst = max(1.0, rate) if burst is None else burst
        self._tokens = self.burst
        self._last_ns = 0

    def take(self, now_ns: int) -> int:
        """Take a token and return 0, or return the nanoseconds until there is one."""
        elapsed_ns = max(0, now_ns - self._last_ns)
        self._tokens, self._last_ns = min(self.burst, self._tokens + elapsed_ns * self.rate / 1e9), now_ns
        if self._tokens < 1:
            return max(1, ceil((1 - self._tokens) / self.rate * 1e9))
        self._tokens -= 1
        return 0


class Grant:
    """What the holder of one key may do."""

    __slots__ = ("_bucket", "entry", "name", "refused", "requests")

    def __init__(self, name: str, entry: KeyEntry) -> None:
        self.name = name
        self.entry = entry
        self.requests = 0
        """Counted requests, also the refused ones."""
        self.refused = 0
        """Requests beyond the rate."""
        self._bucket = None if entry.rate is None else TokenBucket(entry.rate, entry.burst)

    def check(self, scope: Scope, target: str = "") -> None:
        """Raise `Forbidden` unless the key has the scope, for INFER and READ on the model or application `target`."""
        entry = self.entry
        match scope:
            case Scope.KEY:
                return
            case Scope.INFER:
                permitted = self._may_infer(target)
            case Scope.READ:
                permitted = entry.observe or self._may_infer(target)
            case Scope.OBSERVE:
                permitted = entry.observe
            case Scope.MANAGE:
                permitted = entry.manage
        if not permitted:
            on = f" on {target[:SHOWN]!r}" if scope in (Scope.INFER, Scope.READ) else ""
            raise Forbidden(f"the key {self.name!r} does not permit {scope.value}{on} (http.keys_file)")

    def _may_infer(self, target: str) -> bool:
        return target in self.entry.infer or _any_of(self.entry.infer).match(target) is not None

    def take(self, now_ns: int) -> None:
        """Count a request. Raise `Refused`, with the time until the next one, if there are more than its rate."""
        self.requests += 1
        if self._bucket is not None and (wait_ns := self._bucket.take(now_ns)):
            self.refused += 1
            raise Refused(f"the key {self.name!r} has sent more than {self.entry.rate:g} requests per second", wait_ns)


@lru_cache(maxsize=1024)
def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Return one expression for all patterns: a request needs one search. It is no state of a core, nor recorded."""
    return re.compile("|".join(map(translate, patterns)) or "(?!)")


EVERYTHING = KeyEntry(infer=("*",), observe=True, manage=True)
OPEN = Grant("", EVERYTHING)
"""Grant of every client while no keys are needed."""


class Access:
    """The keys that are accepted. Open until `replace_keys`: every client may do everything."""

    def __init__(self) -> None:
        self.is_open = True
        self._by_name: dict[str, Grant] = {}
        self._by_digest: dict[bytes, Grant] = {}
        self._labels: set[str] = set()
        """Labels of the counters in the statistics."""

    def replace_keys(self, entries: Mapping[str, KeyEntry]) -> None:
        """Accept these keys, and no others. Unchanged ones keep the state of their rate."""
        by_name: dict[str, Grant] = {}
        by_digest: dict[bytes, Grant] = {}
        for name, entry in entries.items():
            present = self._by_name.get(name)
            by_name[name] = grant = present if present is not None and present.entry == entry else Grant(name, entry)
            if present is not None:
                grant.requests, grant.refused = present.requests, present.refused
            by_digest |= {bytes.fromhex(text.removeprefix(HASH_PREFIX)): grant for text in entry.hashes}
        self.is_open, self._by_name, self._by_digest = False, by_name, by_digest

    def refresh_counters(self, stats: Stats) -> None:
        """Set the counters of the accepted keys, and remove those of other keys."""
        counts: dict[str, tuple[int, int]] = {}
        for name, grant in self._by_name.items():
            label = name if len(counts) < COUNTED_KEYS else OTHER_KEYS
            requests, refused = counts.get(label, (0, 0))
            counts[label] = requests + grant.requests, refused + grant.refused
        if removed := self._labels - counts.keys():
            stats.remove_values(KEY_COUNTERS, *removed)
        self._labels = set(counts)
        for label, (requests, refused) in counts.items():
            stats.set(f"{KEY_COUNTERS}requests_total", label, to=requests)
            stats.set(f"{KEY_COUNTERS}refused_total", label, to=refused)

    def authenticate(self, authorization: bytes | None) -> Grant:
        """Return what the bearer key in an Authorization header permits. Raise `Unauthenticated` without one.

        The search is by digest: its duration depends on the digest, from which nothing follows about accepted keys.
        """
        if self.is_open:
            return OPEN
        scheme, _, token = (authorization or b"").partition(b" ")
        grant = self._by_digest.get(hashlib.sha256(token.strip()).digest()) if scheme.lower() == b"bearer" else None
        if grant is None:
            raise Unauthenticated
        return grant

    def find_grant(self, key: str) -> Grant:
        """Return what the key of the SDK with this name permits. Raise `Forbidden` if it has no entry.

        Empty: a client without a key, which could connect because no keys are needed there.
        """
        if self.is_open or not key:
            return OPEN
        if (grant := self._by_name.get(key)) is None:
            raise Forbidden(f"the key {key!r} has no entry in http.keys_file")
        return grant

    def check_message(self, now_ns: int, key: str, message: object) -> None:
        """Count and check a message of an SDK client with this key. Raise `Forbidden` or `Refused`."""
        grant = self.find_grant(key)
        grant.take(now_ns)
        grant.check(*need_of(message))


def need_of(message: object) -> tuple[Scope, str]:
    """Return the scope that a message of the SDK needs, and on which model or application."""
    match message:
        case wire.Predict():  # with a model, the application is only where the request comes from
            return Scope.INFER, message.model or message.application
        case wire.Feedback():
            return Scope.INFER, message.application
        case wire.ModelInfo() if message.model or message.application:
            return Scope.READ, message.application or message.model  # the frontend looks in the same order
        case wire.ModelInfo() | wire.Describe() | wire.Watch() | wire.PipelineInfo() | wire.ApplicationInfo():
            return Scope.OBSERVE, ""
        case wire.Tune(command="status" | "arrivals"):
            return Scope.OBSERVE, ""
    return Scope.MANAGE, ""
