"""Parts of `horologe estimate` and `horologe plan`: what they read, print and draw."""
