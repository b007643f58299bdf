"""The command `qposterior`, and what becomes of errors: one line on stderr and an exit code."""

from __future__ import annotations

import logging
import signal
import sys
from typing import Any

import click

import qposterior
from qposterior.cli.compare import compare_command
from qposterior.cli.explore import explore_command
from qposterior.cli.fit import act_command, fit_command
from qposterior.cli.inspect import inspect_command
from qposterior.cli.list import list_command
from qposterior.cli.paper import paper_command
from qposterior.cli.report import report_command
from qposterior.cli.serve import serve_command
from qposterior.errors import QPosteriorError

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_TERMINATED = 1, 2, 130, 143


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(qposterior.__version__, prog_name="qposterior")
def cli() -> None:
    """How sure can you be about the best action?

    \b
    Examples:
      qposterior inspect decisions.csv
      qposterior fit decisions.csv --out answer
      qposterior explore deep-sea --agent abrl --depth 10 --seeds 5
      qposterior compare deep-sea --agents abrl,psrl --depths 5,10 --seeds 20 --out runs/sweep
      qposterior paper contour --out figures
      qposterior list agents
    """


cli.add_command(explore_command)
cli.add_command(fit_command)
cli.add_command(act_command)
cli.add_command(inspect_command)
cli.add_command(serve_command)
cli.add_command(compare_command)
cli.add_command(report_command)
cli.add_command(paper_command)
cli.add_command(list_command)


def main() -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 bad usage, 130 interrupted (Ctrl-C), 143 terminated."""
    _show_log()
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(EXIT_USAGE)
    except click.UsageError as error:
        _complain(error.format_message())
        sys.exit(EXIT_USAGE)
    except (click.Abort, KeyboardInterrupt) as error:
        ending, exit_code = getattr(error.__cause__ or error, "ending", ("interrupted", EXIT_INTERRUPTED))
        _complain(ending)
        sys.exit(exit_code)
    except BrokenPipeError:
        sys.exit(EXIT_FAILED)
    except (QPosteriorError, OSError) as error:  # anything else is a bug and keeps its traceback
        _complain(str(error))
        sys.exit(getattr(error, "exit_code", EXIT_FAILED))


class _TerminatedError(KeyboardInterrupt):
    """SIGTERM: what Ctrl-C keeps is kept."""

    ending = "terminated", EXIT_TERMINATED


def _terminate(_number: int, _frame: Any) -> None:
    raise _TerminatedError


def _show_log() -> None:
    """On a terminal, show what the library logs: that it compiles, which would look like standing still."""
    if sys.stderr.isatty():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("qposterior: %(message)s"))
        logger = logging.getLogger("qposterior")  # not the root: what other libraries log is not ours to show
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)


def _complain(message: str) -> None:
    click.echo(f"qposterior: {' '.join(message.split())}", err=True)
