"""A log as the answer to a question in SQL: it sees the rows as the table `log`, and nothing else on the machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from qposterior.logs.columns import ColumnNames, LogError
from qposterior.logs.relations import Relation, relation_of_view, union_of

if TYPE_CHECKING:
    import duckdb


def answered(
    connection: duckdb.DuckDBPyConnection, relations: Sequence[Relation], sql: str, columns: ColumnNames
) -> Relation:
    """Return the rows that one SELECT makes of the rows of all files, `relations` of all their columns.

    They stand in the table `log` under the names in the files, those of a CSV file as text. Before the question is
    asked files and networks are closed to it, and the settings are locked.
    """
    import duckdb

    name, whole = relations[0].name, union_of(relations)
    for relation in relations:
        ragged = f"SELECT count(*) FILTER ({relation.is_ragged}), count(*) FROM {relation.table}"
        [(wrong, num_rows)] = connection.execute(ragged, relation.parameters).fetchall()
        if wrong:
            size = len(relation.header)
            raise LogError(relation.name, f"{wrong:,} rows have not as many cells as the header, which has {size}")
        if relation.text is not None:
            relation.text.check_number_of_rows(num_rows)
    connection.execute(f"CREATE TEMP TABLE log AS SELECT * FROM {whole.table}", whole.parameters)
    for lock in ("enable_external_access = false", "lock_configuration = true"):
        connection.execute(f"SET {lock}")
    try:
        statements = connection.extract_statements(sql)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise LogError(
                name, "--sql takes one SELECT over the table log, such as SELECT * FROM log WHERE year = '2026'"
            )
        connection.execute(f"CREATE TEMP TABLE asked AS {statements[0].query}")
    except duckdb.Error as error:
        raise LogError(name, f"--sql: {str(error).partition(chr(10))[0]}") from error
    return relation_of_view(connection, name, "asked", columns)
