"""Calls that change models, applications or plans, as the audit log names them."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

import msgspec

from horologe_common import wire
from horologe_common.models import natural_sort_key
from horologe_common.rollouts import reached_versions
from horologe_common.status import Status

if TYPE_CHECKING:
    from collections.abc import Sequence

ROLLOUTS = ("promote", "rollback", "canary")
"""Calls that change which version of a model answers requests without a version."""


class ManagementCall(msgspec.Struct):
    """One call. It is written at its end."""

    client: str
    """Name of the client's key, else its address."""
    door: str
    """`http`, `grpc` or `sdk`."""
    call: str
    """`load`, `upload` (a load with a configuration or files), `unload`, a name of `ROLLOUTS`, `application_declare`,
    `application_withdraw`, `application_rollback`, `plan_apply` or `plan_withdraw`."""
    target: str
    """Model or application. Empty: a plan."""
    version: str = ""
    """Version that the call names. Without one, the version that most requests reach after a load or rollout."""
    weight: float = 0.0
    """Part of the requests that a canary gets."""
    outcome: str = ""
    """Name of the status."""

    def name_admit(self, message: wire.Admit) -> None:
        """Store the name, the version and the weight of a call about a model."""
        self.call = "load" if message.admitted else "unload"
        if message.rollout in ROLLOUTS:
            self.call = message.rollout
        self.version = message.version
        self.weight = message.weight if isfinite(message.weight) else 0.0  # JSON has no form for others

    def name_reply(self, reply: object) -> None:
        """Store the version that a call has chosen."""
        if self.version or self.call not in ("load", "upload", *ROLLOUTS):
            return
        if isinstance(reply, wire.Models) and reply.status == Status.OK:
            self.version = _current_version(reply.models)


def management_call(client: str, door: str, message: object) -> ManagementCall | None:
    """Return the entry of a call, or None for a message that changes nothing."""
    match message:
        case wire.Admit():
            entry = ManagementCall(client, door, "", message.model)
            entry.name_admit(message)
            return entry
        case wire.Declare():
            return ManagementCall(client, door, "application_declare", message.application.name)
        case wire.Withdraw():
            return ManagementCall(client, door, "application_withdraw", message.name)
        case wire.Rollback():
            return ManagementCall(client, door, "application_rollback", message.name)
        case wire.Tune(command="apply" | "withdraw"):
            return ManagementCall(client, door, f"plan_{message.command}", "")
    return None


def _current_version(states: Sequence[wire.ModelState]) -> str:
    reached = reached_versions(sorted(states, key=lambda state: natural_sort_key(state.spec.version)))
    return reached[0].spec.version if reached else ""
