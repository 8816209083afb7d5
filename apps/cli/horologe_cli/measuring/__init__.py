"""Measurements: `horologe measure` on shares of a device, `horologe profile` on a running system."""
