"""Plans in force: what was applied, whether it fits the others, and what all of them need."""
