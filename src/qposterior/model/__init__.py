"""Prior × likelihood in some coordinates: the densities that inference samples. Nothing here draws a random number."""
