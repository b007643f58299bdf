"""What is and what was seen: the MDP, its spaces, its solution, the experience. Nothing random, nothing inferred."""
