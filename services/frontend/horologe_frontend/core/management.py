"""Calls that change models, applications or plans, as the audit log names them."""

from __future__ import annotations

import msgspec

from horologe_common import wire


class ManagementCall(msgspec.Struct, frozen=True):
    """One call, at its end."""

    client: str
    """Name of the client's key, else its address."""
    door: str
    """`http`, `grpc` or `sdk`."""
    call: str
    """`load`, `unload`, `declare`, `withdraw`, `rollback`, `apply_plan` or `withdraw_plan`."""
    target: str
    """Model or application. Empty: a plan."""
    outcome: str
    """Name of the status."""


def call_and_target(message: object) -> tuple[str, str] | None:
    """Return the names of the call and of its target, or None for a message that changes nothing."""
    match message:
        case wire.Admit():
            return "load" if message.admitted else "unload", message.model
        case wire.Declare():
            return "declare", message.application.name
        case wire.Withdraw():
            return "withdraw", message.name
        case wire.Rollback():
            return "rollback", message.name
        case wire.Tune(command="apply" | "withdraw"):
            return f"{message.command}_plan", ""
    return None
