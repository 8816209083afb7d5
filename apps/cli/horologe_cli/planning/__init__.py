"""Parts of `horologe plan`: what its commands read, compute, print and draw."""
