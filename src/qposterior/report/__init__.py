"""Figures and pages from finished tables. Nothing here samples, solves or acts."""
