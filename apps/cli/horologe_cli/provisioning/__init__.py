"""`horologe provision`: workloads and GPU types in a file, the report and the figure of a plan."""
