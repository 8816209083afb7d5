"""The 125 rows of ORLOJ's tables 2 to 5 as workloads, the best schedule that can be found of each, and a bound."""
