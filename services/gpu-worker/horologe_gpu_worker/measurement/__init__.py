"""Measurement of models on shares of a device: `horologe measure` uses it (iGniter section 3.1)."""
