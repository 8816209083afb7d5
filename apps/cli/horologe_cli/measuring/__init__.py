"""`horologe measure`: the runs on a device, their file and the report of the fitted coefficients."""
