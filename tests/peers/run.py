"""Runs the test suites of others direct and through the proxy, and compares test by test: `make test-peers`.

For each suite and each kind of server: a fresh server, the suite against it; another fresh server with a proxy before
it, the suite against the proxy. What ends otherwise and is not explained in differences.toml makes the run fail. A
whole run writes RESULTS.md anew. Reports and logs stay in the cache directory.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from proxy.embedded.server import EmbeddedServer, Flavour
from tests.peers import fetching, isolation
from tests.peers.outcomes import (
    Comparison,
    Outcome,
    compare,
    counts,
    explainer,
    read_explanations,
    results_page,
)
from tests.peers.suites import BOTH, RUN_LIMIT_S, SUITES, Stage, Suite, environment
from tests.support.certificates import Certificates, certificates
from tests.support.proxies import running_proxy
from tests.support.servers import ServerMissingError, connect, running_server, server_binary

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"
DIFFERENCES_SHOWN = 20
AT_ONCE = 2
"""Comparisons under way: much of the time of some suites is spent waiting."""
ENGINE = "engine_of_ackstream"


def say(text: str) -> None:
    """One line for whoever watches."""
    print(text, flush=True)  # noqa: T201 - a program


@contextlib.contextmanager
def prepared_server(suite: Suite, flavour: Flavour, certificate: Certificates) -> Iterator[EmbeddedServer]:
    """A fresh server with what the suite wants to find on it."""
    tls = (
        f"--ssl-ca={certificate.ca}",
        f"--ssl-cert={certificate.certificate}",
        f"--ssl-key={certificate.key}",
    )
    with running_server(flavour, options=[*tls, *suite.options]) as server:
        with connect(server) as connection, connection.cursor() as cursor:
            for statement in (*suite.setup, *(suite.mysql_setup if flavour == "mysql" else suite.mariadb_setup)):
                cursor.execute(statement)
            cursor.execute(f"CREATE USER {ENGINE}")
            cursor.execute(f"GRANT ALL ON *.* TO {ENGINE}")
            if suite.password:
                cursor.execute("ALTER USER root@localhost IDENTIFIED BY %s", [suite.password])
        yield server


@contextlib.contextmanager
def address_of(
    server: EmbeddedServer, certificate: Certificates, log: Path, *, through_proxy: bool
) -> Iterator[tuple[str, int]]:
    """Where the suite is to connect."""
    if not through_proxy:
        yield server.host, server.port
        return
    # The proxy's clients are to see the certificate that they see without it.
    config = log.with_suffix(".toml")
    config.write_text(f"tls_certificate = '{certificate.certificate}'\ntls_key = '{certificate.key}'\n")
    tls = ["--config", str(config)]
    with running_proxy(server, log, ["--log-level", "warning", *tls], account=ENGINE) as proxy:
        yield proxy.host, proxy.port


def run_suite(suite: Suite, flavour: Flavour, folder: Path, *, through_proxy: bool) -> dict[str, Outcome]:
    """One run; what became of each test."""
    way = "proxy" if through_proxy else "direct"
    report, log = folder / f"{way}.report", folder / f"{way}.log"
    report.unlink(missing_ok=True)
    python = fetching.environment_of(suite)
    with tempfile.TemporaryDirectory(prefix="ackstream-peers-") as scratch:
        source = fetching.unpacked(fetching.archive(suite.source, python), Path(scratch) / "source")
        certificate = suite.certificate(source) if suite.certificate else certificates()
        with (
            prepared_server(suite, flavour, certificate) as server,
            address_of(server, certificate, folder / "proxy-itself.log", through_proxy=through_proxy) as (host, port),
            log.open("w") as output,
        ):
            command = suite.command(Stage(flavour, host, port, source, python, certificate, report))
            with contextlib.suppress(subprocess.TimeoutExpired):  # The report shows what was not reached.
                subprocess.run(
                    command.argv,
                    cwd=command.cwd,
                    env=environment(command),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=RUN_LIMIT_S,
                    check=False,
                )
    written = log if command.prints_report else report
    outcomes = suite.reader(written.read_text()) if written.exists() else {}
    if not outcomes:
        raise fetching.FetchError(f"{suite.name} on {flavour} ran no test, see {log}")
    return outcomes


def compare_suite(suite: Suite, flavour: Flavour) -> Comparison:
    """Both runs of a suite on one kind of server."""
    folder = fetching.cache() / "results" / f"{suite.name}-{flavour}"
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    direct = run_suite(suite, flavour, folder, through_proxy=False)
    proxied = run_suite(suite, flavour, folder, through_proxy=True)
    explanations = read_explanations((HERE / "differences.toml").read_text())
    differences = compare(direct, proxied, explainer(explanations, suite.name, flavour))
    comparison = Comparison(suite.name, suite.source.version, str(server_binary(flavour)), direct, proxied, differences)
    seconds = time.monotonic() - began
    say(f"{suite.name} on {flavour}: direct {counts(direct)}, proxy {counts(proxied)}, {seconds:.0f} s, {folder}")
    for difference in differences[:DIFFERENCES_SHOWN]:
        say(f"  {difference}: {difference.why or '*** NOT EXPLAINED ***'}")
    if len(differences) > DIFFERENCES_SHOWN:
        say(f"  … and {len(differences) - DIFFERENCES_SHOWN} more")
    return comparison


def main() -> int:
    """The whole run, or a part of it; 1 when something differs that nobody has explained, or could not be run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="all, unless some are named")
    parser.add_argument("--server", choices=BOTH, action="append", help="both, unless one is named")
    chosen = parser.parse_args()
    suites = [suite for suite in SUITES if not chosen.suites or suite.name in chosen.suites]
    if not isolation.is_alone():
        for suite in suites:
            say(f"fetching {suite.name} {suite.source.version}")
            fetching.archive(suite.source, fetching.environment_of(suite))
        isolation.start_alone(["-m", "tests.peers.run", *sys.argv[1:]])
        say("there is no `unshare` here (util-linux), and some suites must not reach the network")
        return 1
    isolation.bring_loopback_up()
    flavours = chosen.server or BOTH
    pairs = [(suite, flavour) for suite in suites for flavour in suite.flavours if flavour in flavours]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        comparisons = [done for done in pool.map(lambda pair: attempt(*pair), pairs) if done is not None]
    missing = len(pairs) - len(comparisons)
    if not (missing or chosen.suites or chosen.server):
        today = dt.datetime.now(dt.UTC).date().isoformat()
        RESULTS.write_text(results_page(comparisons, date=today, notes=(HERE / "notes.md").read_text()))
    different = sum(len(comparison.unexplained) for comparison in comparisons)
    say(f"{len(comparisons)} comparisons, {different} differences without explanation, {missing} could not be made")
    return 1 if different or missing else 0


def attempt(suite: Suite, flavour: Flavour) -> Comparison | None:
    """A comparison; None, having said why, where it could not be made."""
    try:
        return compare_suite(suite, flavour)
    except (fetching.FetchError, ServerMissingError, AssertionError) as failure:
        say(f"*** {suite.name} on {flavour}: {failure} ***")
        return None


if __name__ == "__main__":
    sys.exit(main())
