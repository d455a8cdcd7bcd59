"""The fork server at its parent's end."""

from __future__ import annotations

import subprocess
import sys

CLOSES_WITHOUT_READING = """
import os, select, socket
from proxy.server.fork_server import FORK, MESSAGE, ForkServer
server = ForkServer(lambda *_: None)
requests, (one, other) = server._requests, socket.socketpair()
socket.send_fds(requests, [MESSAGE.pack(FORK, 1, 0)], [one.fileno(), other.fileno()])
select.select([requests], [], [], 10)
requests.close()
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_it_ends_without_an_error_though_the_parent_has_not_read_its_last_report() -> None:
    done = subprocess.run([sys.executable, "-c", CLOSES_WITHOUT_READING], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("0\n", "")
