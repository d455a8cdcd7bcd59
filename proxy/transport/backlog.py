"""How many clients the kernel keeps for a listening socket while the proxy is busy.

Where there is no room, the kernel drops the last packet of a client's handshake. Under load it may
have answered the first one by a SYN cookie, and then the client counts as connected to itself alone.
In MySQL's protocol the server speaks first, so that client waits for ever.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

BACKLOG: Final = 1024
"""As many clients as may connect by default (`connections_max`): they come back at once after a restart."""

SOMAXCONN: Final = Path("/proc/sys/net/core/somaxconn")
"""What the kernel keeps for a socket at most, whatever the backlog."""


def warn_if_cut(allowed: Path = SOMAXCONN) -> None:
    """Log a warning if the kernel keeps fewer clients than BACKLOG."""
    try:
        most = int(allowed.read_text())
    except (OSError, ValueError):
        return  # Another system than Linux.
    if most < BACKLOG:
        log.warning(
            "net.core.somaxconn is %d: of more clients that connect at once, some may wait for ever; set it to %d",
            most,
            BACKLOG,
            extra={"event": "backlog.cut"},
        )
