"""Fit the coefficients of `horologe_common.interference` from measured runs (iGniter section 3.1)."""
