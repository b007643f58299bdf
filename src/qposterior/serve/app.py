"""The local page: drop a file, look at what is in it, fit it, read the answer, download it."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from qposterior.errors import QPosteriorError
from qposterior.logs.columns import OPTIONAL, REQUIRED, Columns
from qposterior.logs.preview import Preview, inspect_log
from qposterior.logs.settings import FitSettings
from qposterior.logs.sources import ENDINGS
from qposterior.report.page import page_templates
from qposterior.serve.jobs import ANSWER, Job, Jobs

BLOCK = 1 << 20
"""Bytes of a file that are copied in one go."""

LONGEST_NAME = 80
FLAGS, CHOICES = ("cost", "normalise"), ("outcome", "missing", "numeric")


def make_app(home: Path, answer: Path | None = None) -> Starlette:
    """Return the application. Logs and answers are kept in `home`; `answer` is a fit to show beside them."""
    jobs, pages = Jobs(home=home), page_templates()

    def page(template: str, **parts: Any) -> HTMLResponse:
        return HTMLResponse(pages.get_template(template).render(parts))

    def job_of(request: Request) -> Job:
        job = jobs.jobs.get(int(request.path_params["number"]))
        if job is None:
            raise HTTPException(404, "there is no such log")
        return job

    async def show_home(_: Request) -> Response:
        return page("serve_home.html", title="qposterior", answer=answer, jobs=jobs.jobs.values(), endings=ENDINGS)

    async def take_log(request: Request) -> Response:
        form = await request.form(max_files=1, max_fields=1)
        upload = form.get("log")
        name = Path(str(getattr(upload, "filename", "") or "")).name[:LONGEST_NAME]
        ending = next((ending for ending in ENDINGS if name.lower().endswith(ending)), None)
        if ending is None or isinstance(upload, str) or upload is None:
            raise HTTPException(400, f"give a file that ends in {', '.join(ENDINGS)}")
        job = jobs.add(name, ending)
        with job.log.open("wb") as stream:
            while block := await upload.read(BLOCK):
                stream.write(block)
        return RedirectResponse(f"/logs/{job.number}", status_code=303)

    async def show_log(request: Request) -> Response:
        job, told = job_of(request), dict(request.query_params)
        found, problem = await run_in_threadpool(_look, job, told)
        if found is not None and not told and found.guess is not None:  # the first look fills in what can be guessed
            told = _as_fields(found.guess.columns, found.guess.settings)
            found, problem = await run_in_threadpool(_look, job, told)
        return page(
            "serve_log.html",
            title=f"What is in {job.name}",
            job=job,
            found=found,
            problem=problem,
            told=told,
            ours=(*REQUIRED, *OPTIONAL),
        )

    async def fit_log(request: Request) -> Response:
        job, form = job_of(request), await request.form(max_files=0, max_fields=50)
        if job.state != "running":
            try:
                columns, settings = _read_fields({name: str(value) for name, value in form.items()})
            except QPosteriorError as error:
                raise HTTPException(400, str(error)) from error
            jobs.start(job, columns, settings)
        return RedirectResponse(f"/answers/{job.number}", status_code=303)

    async def show_answer(request: Request) -> Response:
        job = job_of(request)
        return page("serve_answer.html", title=f"The answer to {job.name}", job=job)

    async def show_file(request: Request) -> Response:
        name = request.path_params["name"]
        folder = answer if request.path_params["number"] == 0 else job_of(request).folder
        if name not in ANSWER or folder is None or not (folder / name).is_file():
            raise HTTPException(404, "there is no such file")
        return FileResponse(folder / name, media_type=ANSWER[name], filename=None if name == "index.html" else name)

    async def download(request: Request) -> Response:
        folder = job_of(request).folder
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")):
                archive.write(path, path.name)
        headers = {"content-disposition": 'attachment; filename="answer.zip"'}
        return Response(packed.getvalue(), media_type="application/zip", headers=headers)

    return Starlette(
        routes=[
            Route("/", show_home),
            Route("/logs", take_log, methods=["POST"]),
            Route("/logs/{number:int}", show_log),
            Route("/logs/{number:int}/fit", fit_log, methods=["POST"]),
            Route("/answers/{number:int}", show_answer),
            Route("/answers/{number:int}/answer.zip", download),
            Route("/answers/{number:int}/{name}", show_file),
        ],
        exception_handlers={HTTPException: _say},
    )


async def _say(_: Request, error: Exception) -> Response:
    """Return what was wrong with a request, as plain text."""
    return PlainTextResponse(str(getattr(error, "detail", error)), status_code=getattr(error, "status_code", 500))


def _look(job: Job, told: Mapping[str, str]) -> tuple[Preview | None, str | None]:
    """Return what is in a log, and why not where it cannot be read; files are called as the user called them."""
    try:
        columns, settings = _read_fields(told)
        found = inspect_log(job.log, columns=columns, settings=settings)
    except QPosteriorError as error:
        return None, str(error).replace(str(job.log), job.name)
    return found, None if found.problem is None else found.problem.replace(str(job.log), job.name)


def _read_fields(told: Mapping[str, str]) -> tuple[Columns, FitSettings]:
    """Return columns and settings of the fields of the form; what is empty is not set."""
    columns = {name: told[f"column_{name}"] for name in (*REQUIRED, *OPTIONAL) if told.get(f"column_{name}")}
    settings: dict[str, Any] = {name: True for name in FLAGS if told.get(name)}
    settings |= {name: told[name] for name in CHOICES if told.get(name)}
    if told.get("key"):
        settings["next_from"] = ",".join(name for name in (told["key"], told.get("order")) if name)
    if told.get("discount"):
        try:
            settings["discount"] = float(told["discount"])
        except ValueError:
            settings["discount"] = told["discount"]  # which is refused by its rule
    return Columns(**columns), FitSettings(**settings)


def _as_fields(columns: Mapping[str, str], settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of the form that stand for columns and settings."""
    fields = {f"column_{name}": theirs for name, theirs in columns.items()}
    fields |= {name: str(settings[name]) for name in (*FLAGS, *CHOICES) if settings.get(name)}
    key, _, order = str(settings.get("next_from", "")).partition(",")
    return fields | {"key": key, "order": order}
