"""What the first byte of a command implies for its answer.

mysql-mimic names MySQL's own commands. Here are those that it lacks, and the sets by which the walker
distinguishes answers.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from proxy.wire.mimic_adapter import Commands

COM_SLEEP: Final = int(Commands.COM_SLEEP)
COM_QUERY: Final = int(Commands.COM_QUERY)
COM_CHANGE_USER: Final = int(Commands.COM_CHANGE_USER)
COM_STMT_PREPARE: Final = int(Commands.COM_STMT_PREPARE)
COM_STMT_EXECUTE: Final = int(Commands.COM_STMT_EXECUTE)

COM_CLONE: Final = 0x20
"""MySQL's CLONE changes the protocol of the connection, so nothing after it is read."""

COM_SEMI_SYNC_ACK: Final = 0xEF
"""A replica's receipt, sent into the endless answer to a binlog dump."""

COM_STMT_BULK_EXECUTE: Final = 0xFA
"""MariaDB's execution of one statement with many rows of parameters."""

SILENT: Final = MappingProxyType(
    {
        int(Commands.COM_QUIT): 1,
        int(Commands.COM_STMT_CLOSE): 1 + 4,
        int(Commands.COM_STMT_SEND_LONG_DATA): 1 + 4 + 2,
    }
)
"""Commands that no server answers, and how long they are at least."""

MULTI_RESULT: Final = frozenset(
    (
        COM_QUERY,
        COM_STMT_EXECUTE,
        int(Commands.COM_PROCESS_INFO),
        COM_STMT_BULK_EXECUTE,
    )
)
"""Commands that run statements. Their answer may be several results, one after the other, or a
request for a file."""

DUMPS: Final = frozenset(map(int, (Commands.COM_BINLOG_DUMP, Commands.COM_BINLOG_DUMP_GTID)))
"""Commands whose answer ends only with the connection, as a rule."""
