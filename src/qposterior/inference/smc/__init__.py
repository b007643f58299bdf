"""A posterior that follows the data: weighted particles, reweighted, resampled and moved as observations arrive."""
