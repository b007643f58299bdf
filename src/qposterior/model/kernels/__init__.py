"""The compiled loops, and nothing else: plain functions over contiguous arrays, wrapped once, random numbers given."""
