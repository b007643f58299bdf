"""Which files a source is: one, those of a folder, or those of a pattern."""

from __future__ import annotations

import glob
from pathlib import Path

from qposterior.logs.columns import LogError

ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet", ".pq")


def files_of(source: Path) -> list[Path]:
    """Return the files that a source names: itself, the logs in a folder (not below it), or what a pattern matches.

    In the order of their names. A file whose name is a pattern stands for itself.
    """
    if source.is_dir():
        files = [path for path in source.iterdir() if path.is_file() and path.name.lower().endswith(ENDINGS)]
        if not files:
            raise LogError(source, f"is a folder without logs (files that end in {', '.join(ENDINGS)})")
        return sorted(files)
    if source.exists() or not glob.has_magic(str(source)):
        return [source]
    files = [path for path in map(Path, glob.glob(str(source))) if path.is_file()]
    if not files:
        raise LogError(source, "no file has a name like that")
    return sorted(files)
