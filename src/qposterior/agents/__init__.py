"""Agents: one file each, one protocol (`protocol.Agent`), all of them in `registry`. They never see the truth."""
