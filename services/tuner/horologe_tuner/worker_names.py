"""Names of what runs the workers of a hardware type: a compose service, a Swarm service, a Deployment."""

from __future__ import annotations

from horologe_common.service.settings import SettingsError

ANY = "*"


class WorkerNames:
    """The setting `tuner.scaler_names`. Raises SettingsError for an entry that is not `HARDWARE=NAME`."""

    def __init__(self, entries: tuple[str, ...]) -> None:
        self._names: dict[str, str] = {}
        for entry in entries:
            hardware, equals, name = entry.partition("=")
            if not (hardware and equals and name):
                raise SettingsError(f"setting tuner.scaler_names: got {entry!r}, wanted HARDWARE=NAME")
            self._names[hardware] = name

    def find_name(self, hardware: str) -> str:
        """Return the name for a hardware type. Raises SettingsError if none is set."""
        if (name := self._names.get(hardware) or self._names.get(ANY)) is None:
            wanted = ", ".join(self._names)
            raise SettingsError(f"setting tuner.scaler_names: no name for hardware {hardware!r}, only for {wanted}")
        return name.replace(ANY, hardware)
