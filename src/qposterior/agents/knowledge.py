"""What agents may be told of transitions. Nothing is imported here: the command line names them in its help."""

TRANSITION_KNOWLEDGE = ("known", "revealed", "dirichlet")
"""The table beforehand · the row of a pair on its first visit · counts of successors only."""
