"""The learning half of a selector on its own, for the experiment `feedback`."""
