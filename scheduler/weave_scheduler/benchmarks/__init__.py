"""Microbenchmarks of the scheduler; ``weave bench`` and the files under bench/ call them."""
