"""`python -m qposterior …` is the command `qposterior`."""

from qposterior.cli.main import main

main()
