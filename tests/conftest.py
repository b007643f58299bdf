"""Shared settings: hypothesis runs the same examples every time, so a failure is a failure for everybody."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("repeatable")
