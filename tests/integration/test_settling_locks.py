"""ACK, NACK and EXTEND by ids lock the rows that they name, whatever the server takes the table for."""

from __future__ import annotations

import pytest

from tests.support.queues import rows, run
from tests.support.servers import connect

MESSAGES = 10_000
LOCKED = (
    "SELECT trx_rows_locked FROM information_schema.innodb_trx AS trx"
    " JOIN information_schema.processlist AS thread ON thread.id = trx.trx_mysql_thread_id WHERE thread.db = '{}'"
)
IDS = ", ".join(str(8 * number + 1) for number in range(100))


@pytest.mark.parametrize("statement", [f"ACK m WHERE id IN ({IDS})", f"EXTEND m WHERE id IN ({IDS}) BY 60"])
def test_few_rows_are_locked_though_the_statistics_show_an_empty_table(server, proxy, database, statement: str) -> None:
    """The server computes them anew some seconds after a change. By those of an empty table it would
    read all rows, or all that are due, and claims would pass over these."""
    with connect(server, database=database) as root, proxy.connect(database=database) as client:
        with proxy.connect(database=database) as owner:
            run(owner, "CREATE QUEUE m (payload VARCHAR(200))")
        run(root, "ALTER TABLE m STATS_AUTO_RECALC = 0")
        with root.cursor() as cursor:
            cursor.executemany("INSERT INTO m (payload, epoch) VALUES (%s, 1)", [("x" * 100,)] * MESSAGES)
        for table in ("innodb_table_stats", "innodb_index_stats"):
            column = "n_rows" if table == "innodb_table_stats" else "stat_value"
            run(root, f"UPDATE mysql.{table} SET {column} = 1 WHERE database_name = '{database}' AND table_name = 'm'")
        run(root, "FLUSH TABLES m")
        run(client, "BEGIN")
        run(client, statement)
        ((locked,),) = rows(root, LOCKED.format(database))
        assert locked <= 4 * 100
        run(client, "ROLLBACK")
