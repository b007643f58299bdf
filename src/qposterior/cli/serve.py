"""`qposterior serve`."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import click

HOST = "127.0.0.1"


@click.command("serve", short_help="A local page: drop a log, look at it, fit it, read the answer.")
@click.argument("answer", required=False, type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8765, show_default=True, help="0 takes one that is free."
)
@click.option("--most-mb", type=click.IntRange(1), default=500, show_default=True, help="Largest file that is taken.")
def serve_command(answer: Path | None, port: int, most_mb: int) -> None:
    """Show a page in the browser of this machine: drop a log, look at what is in it, fit it, download the answer.

    With the folder of an ANSWER that is shown too. The page is served to this machine alone; nothing is kept when the
    program ends (Ctrl-C), but what was downloaded.

    \b
    Examples:
      qposterior serve
      qposterior serve answer --port 9000
    """
    from qposterior.extra import import_extra
    from qposterior.logs.files import holds_fit

    uvicorn = import_extra("uvicorn", "the local page", extra="serve")
    for name in ("starlette", "python_multipart"):
        import_extra(name, "the local page", extra="serve")
    import_extra("jinja2", "the local page")
    if answer is not None and not holds_fit(answer):
        raise click.UsageError(f"{answer} holds no answer of `qposterior fit --out`")
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as door:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            door.bind((HOST, port))
        except OSError as error:
            raise click.UsageError(f"port {port} cannot be used ({error.strerror}); give another --port") from error
        port = door.getsockname()[1]
        with TemporaryDirectory(prefix="qposterior-") as home:
            from qposterior.serve.app import make_app
            from qposterior.serve.local import LocalOnly

            app = LocalOnly(make_app(Path(home), answer), port=port, most_bytes=most_mb * 2**20)
            click.echo(f"http://{HOST}:{port}/  (Ctrl-C ends it, and what was not downloaded is forgotten)")
            settings = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1, server_header=False)
            uvicorn.Server(settings).run(sockets=[door])
