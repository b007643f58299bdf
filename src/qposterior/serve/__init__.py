"""A local page for `fit`: what answers a browser on this machine, and nothing that reads a log or draws."""
