"""Parts of the benchmarks: scenarios, servers, targets, runs, reports."""
