"""The lines of README and docs/ that start the proxy, started from the page."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import SERVE_LINES, blocks_of
from tests.support.queues import run
from tests.support.servers import connect

pytestmark = pytest.mark.either_server

LINES = {
    f"{block}: {number}": line
    for block in blocks_of(SERVE_LINES)
    for number, line in enumerate(block.text.splitlines())
    if "ackstream serve --backend" in line
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_line_that_starts_the_proxy_in_front_of_a_server_starts_it(server, database, tmp_path, line: str) -> None:
    """Its placeholders become a server, an account and a file with its password; the ports are free ones."""
    with connect(server) as root:
        run(root, f"CREATE USER {database} IDENTIFIED BY 'of the page'")
        run(root, f"GRANT ALL ON *.* TO {database}")
    words = shlex.split(re.sub(r"\w+@HOST:\w+", f"{database}@{server.host}:{server.port}", line), comments=True)
    password = Path(tmp_path / words[words.index("--backend-password-file") + 1])
    password.write_text("of the page\n")
    password.chmod(0o600)
    free = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    command = [sys.executable, "-m", "proxy", *words[1:], *free]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as proxy:
        try:
            assert proxy.stdout is not None
            ready = next((said for said in proxy.stdout if said.startswith("ackstream ready")), "")
            assert f"backend={server.host}:{server.port}" in ready
        finally:
            proxy.terminate()
        assert proxy.wait(60) == 0
    with connect(server) as root:
        run(root, f"DROP USER {database}")
