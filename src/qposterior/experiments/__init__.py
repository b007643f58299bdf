"""Runs: an agent in a world, the rows it leaves, and the numbers they are judged by. No plots."""
