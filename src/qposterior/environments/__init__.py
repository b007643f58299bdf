"""Problems: each a function that returns a `FiniteMDP`, all of them in `registry`. No agent, no inference."""
