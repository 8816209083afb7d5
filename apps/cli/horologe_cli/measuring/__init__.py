"""Measurements of `horologe measure`: on shares of a device, and on a running system."""
