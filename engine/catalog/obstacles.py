"""What of a server keeps the engine from claiming any message, whatever the account may and the tables are.

Only what lasts until somebody changes a setting. A server that is read-only for a while is none: its streams wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

FORCED_MOST: Final = 3
"""With a greater innodb_force_recovery, InnoDB of MySQL refuses all writes. That of MariaDB takes them."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why the server refuses claims, with the remedy."""

    text: str
    shown: bool = True
    """Whether it shows when no row is claimed. It may not concern all tables: a database can be left out of the
    binary log."""


def obstacle_of(variables: Mapping[str, str], *, mariadb: bool) -> Obstacle | None:
    """What keeps the server from claims, by those of its variables that the statement `rights_server` reads."""
    form = variables.get("binlog_format", "ROW")
    if variables.get("wsrep_on") == "ON" and variables.get("wsrep_forced_binlog_format", "NONE") != "NONE":
        form = variables["wsrep_forced_binlog_format"]
    if variables.get("log_bin") == "ON" and form == "STATEMENT":
        return Obstacle(
            "the server's binlog_format is STATEMENT, in which it refuses the engine's claims (1665):"
            " SET GLOBAL binlog_format = ROW, and in the server's configuration"
        )
    if variables.get("innodb_read_only") == "ON":
        return Obstacle("the server runs with innodb_read_only, so nothing can be claimed: restart it without")
    if not mariadb and int(variables.get("innodb_force_recovery", "0")) > FORCED_MOST:
        text = "the server runs with innodb_force_recovery, so nothing can be claimed: restart it without"
        return Obstacle(text, shown=False)
    return None
