"""Ways to a posterior: exact enumeration, HMC, tempering. Each takes a target and returns draws with diagnostics."""
