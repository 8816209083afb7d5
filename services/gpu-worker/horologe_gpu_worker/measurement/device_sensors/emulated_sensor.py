"""Sensor of an emulated device: power and clock by Eq. 9 and 10, from the activity of its shares."""

from __future__ import annotations
