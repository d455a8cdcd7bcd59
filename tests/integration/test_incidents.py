"""docs/troubleshooting.md, "Incidents": what breaks, and what the page, the log, the alerts and doctor show of it.

Each row of the table is an incident, which is made here. What the row quotes is what is looked for. An alert is
looked for by the values of its metrics, without its `for`.
"""

from __future__ import annotations

import contextlib
import html
import operator
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import pymysql
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.store.mysql import MySQLStore
from engine.store.opening import BackendAddress
from engine.store.port import StoreError
from proxy.commands.doctor import client_tls, findings
from proxy.embedded.server import EmbeddedServer
from proxy.server.queue_watch import JOBS_MIN
from proxy.settings import Settings
from tests.support.certificates import make_certificates
from tests.support.proxies import RunningProxy, running_proxy
from tests.support.queues import Consumer, create_queue, enqueue, rows, run
from tests.support.servers import connect
from tests.support.waiting import eventually

pytestmark = [pytest.mark.either_server, pytest.mark.timeout(180)]

REPOSITORY = Path(__file__).parents[2]
ALERTS = (REPOSITORY / "docker" / "prometheus" / "alerts.yaml").read_text()
ALERT = re.compile(r"- alert: (\w+)\n(.*?)(?=\n      - alert:|\Z)", re.DOTALL)
TERM = re.compile(r'(ackstream_\w+)(?:\{(\w+)(!?=)"([\w.]+)"\})?\)? (==|>|<) ([\d.]+(?: \* \d+)*)')
COMPARED = {"==": operator.eq, ">": operator.gt, "<": operator.lt}
WITHIN_S = 60.0
"""The cause is named within a minute."""


@dataclass
class Site:
    """A server, a proxy in front of it, and a database."""

    server: EmbeddedServer
    proxy: RunningProxy
    root: Any
    database: str
    folder: Path
    path: str = "/"
    """The page that shows the incident."""
    settings: Settings = field(default_factory=Settings)
    account: str = "root"

    @contextlib.contextmanager
    def at(self, path: str) -> Iterator[None]:
        """Look at another page."""
        self.path, before = path, self.path
        yield
        self.path = before

    def shows(self, text: str) -> bool:
        """Whether the page has this text, and not of a queue of another database."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.proxy.admin_port}{self.path}", timeout=30) as answer:
            parts = re.split(r"(?=<li)|(?<=</li>)", answer.read().decode())
        own = [part for part in parts if not part.startswith("<li>") or f"db={self.database}&" in part]
        return text in html.unescape(re.sub(r"<[^>]+>", "", "".join(own)))

    def has_logged(self, event: str) -> bool:
        """Whether the log has this event: one of a queue, of one of this database."""
        lines = [line for line in self.proxy.output.splitlines() if f" {event}: " in line]
        of_queues = not event.startswith(("server.", "connections.", "certificate.", "binlog."))
        return any(f"{self.database}.m" in line for line in lines) if of_queues else bool(lines)

    def client(self) -> Any:
        """A connection through the proxy."""
        return self.proxy.connect(database=self.database)

    def holds(self, alert: str) -> bool:
        """Whether the metrics are as the alert says; those of queues, for one of this database."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.proxy.admin_port}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        terms = TERM.findall(dict(ALERT.findall(ALERTS))[alert])
        assert terms, alert
        for metric, label, is_wanted, value_of_label, comparison, bound in terms:
            least = prod(map(float, bound.split(" * ")))
            found = [
                sample.value
                for sample in samples
                if sample.name == metric
                and sample.labels.get("db", self.database) == self.database
                and (not label or (sample.labels.get(label) == value_of_label) == (is_wanted == "="))
            ]
            if not any(COMPARED[comparison](value, least) for value in found):
                return False
        return True

    def found_by_doctor(self) -> Sequence[str]:
        """What doctor's warnings and errors are about."""
        address = BackendAddress(self.server.host, self.server.port, self.account)
        store, found = MySQLStore(address), [client_tls(self.settings)]
        try:
            found += findings(self.settings, address, store)
        except StoreError:
            return ["the server"]
        finally:
            store.close()
        return [finding.about.replace(f" {self.database}.m", "") for finding in found if finding.level != "ok"]


# Incidents of a queue.


@contextlib.contextmanager
def revoked(site: Site) -> Iterator[None]:
    account = f"e_{site.database}"
    run(site.root, f"CREATE USER {account}@localhost")
    run(site.root, f"GRANT SELECT, UPDATE, DELETE ON {site.database}.* TO {account}@localhost")
    try:
        with running_proxy(site.server, site.folder / "revoked", account=f"{account}:") as site.proxy:
            site.account = account
            with site.client() as client:
                create_queue(client, "m")
                assert rows(client, "STREAM * FROM m NOWAIT") == []
            run(site.root, f"REVOKE UPDATE ON {site.database}.* FROM {account}@localhost")
            yield
    finally:
        run(site.root, f"DROP USER {account}@localhost")


@contextlib.contextmanager
def bad_comment(site: Site) -> Iterator[None]:
    with site.client() as client:
        create_queue(client, "m")
        create_queue(client, "well")
        run(client, "ALTER TABLE m COMMENT 'vitess_message,vt_ack_wait=soon'")
        yield
        assert not site.shows(f"{site.database}.well is broken")


@contextlib.contextmanager
def no_index(site: Site) -> Iterator[None]:
    with site.client() as client:
        create_queue(client, "m")
        assert rows(client, "STREAM * FROM m NOWAIT") == []
        run(client, "ALTER TABLE m DROP INDEX next_idx")
        yield


@contextlib.contextmanager
def other_unit(site: Site) -> Iterator[None]:
    with site.client() as client:
        create_queue(client, "m")
        run(client, "INSERT INTO m (time_next) VALUES (UNIX_TIMESTAMP() + 3600)")
        yield


@contextlib.contextmanager
def hanging_worker(site: Site) -> Iterator[None]:
    """Its jobs took some milliseconds before."""
    with site.client() as worker:
        create_queue(worker, "m", vt_ack_wait="600")
        enqueue(worker, "m", "a" * JOBS_MIN)
        for (id_,) in rows(worker, f"STREAM id FROM m LIMIT {JOBS_MIN} WAIT 20"):
            run(worker, f"ACK m WHERE id = {id_}")
        enqueue(worker, "m", "a")
        assert len(rows(worker, "STREAM * FROM m LIMIT 1 WAIT 20")) == 1
        with site.at(f"/queue?{urllib.parse.urlencode({'db': site.database, 'name': 'm'})}"):
            assert site.shows(f"KILL {worker.thread_id()}")
        yield


@contextlib.contextmanager
def wait_is_over(site: Site) -> Iterator[None]:
    with site.client() as slow_worker, site.client() as worker:
        create_queue(worker, "m", vt_ack_wait="1")
        enqueue(worker, "m", "a")
        for client in slow_worker, worker:
            assert rows(client, "STREAM id FROM m LIMIT 1 WAIT 20") == [(1,)]
        yield


@contextlib.contextmanager
def poison(site: Site) -> Iterator[None]:
    with site.client() as worker:
        create_queue(worker, "m")
        enqueue(worker, "m", "a")
        for _ in range(18):
            assert rows(worker, "STREAM id FROM m LIMIT 1 WAIT 20") == [(1,)]
            run(worker, "NACK m WHERE id = 1")
        yield


@contextlib.contextmanager
def no_consumer(site: Site) -> Iterator[None]:
    with site.client() as producer:
        create_queue(producer, "m")
        enqueue(producer, "m", "a")
        yield


@contextlib.contextmanager
def dead_letters_stay(site: Site) -> Iterator[None]:
    with site.client() as worker:
        create_queue(worker, "m", max_attempts="1", dead_letter="graves")
        enqueue(worker, "m", ["poison"])
        assert rows(worker, "STREAM id FROM m LIMIT 1 WAIT 20") == [(1,)]
        run(worker, "NACK m WHERE id = 1")
        yield
        enqueue(worker, "m", ["fine"])
        assert rows(worker, "STREAM payload FROM m LIMIT 1 WAIT 20") == [("fine",)]
        assert rows(worker, "SELECT epoch, time_acked FROM m WHERE id = 1") == [(1, None)]


@contextlib.contextmanager
def refused_row(site: Site) -> Iterator[None]:
    with site.client() as worker:
        create_queue(worker, "m", "payload TEXT, CONSTRAINT only_good CHECK (epoch = 0 OR payload <> 'bad')")
        enqueue(worker, "m", ["bad", "good"])
        assert rows(worker, "STREAM payload FROM m LIMIT 1 WAIT 20") == [("good",)]
        yield


# Incidents of the server.


@contextlib.contextmanager
def out_of_reach(site: Site) -> Iterator[None]:
    site.server.kill()
    yield
    site.server.start()
    eventually(lambda: "server.reached" in site.proxy.output, timeout_s=30)


@contextlib.contextmanager
def read_only(site: Site) -> Iterator[None]:
    def probed(*paths: str) -> list[int]:
        found = []
        for path in paths:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{site.proxy.admin_port}{path}", timeout=30) as answer:
                    found.append(answer.status)
            except urllib.error.HTTPError as error:
                with error:
                    found.append(error.code)
        return found

    assert probed("/readyz") == [200]
    run(site.root, "SET GLOBAL read_only = 1")
    yield
    assert probed("/readyz", "/livez", "/health") == [503, 200, 200]
    run(site.root, "SET GLOBAL read_only = 0")
    eventually(lambda: probed("/readyz") == [200])
    eventually(lambda: "server.writable" in site.proxy.output)


@contextlib.contextmanager
def exhausted(site: Site) -> Iterator[None]:
    """The engine keeps its connections, and clients are refused."""
    run(site.root, "SET GLOBAL max_connections = 10")
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(pymysql.err.OperationalError):
            for _ in range(12):
                stack.enter_context(site.proxy.connect())
        with pytest.raises(pymysql.err.OperationalError, match="Too many connections"):
            site.proxy.connect()
    yield
    run(site.root, "SET GLOBAL max_connections = 500")


@contextlib.contextmanager
def stalled(site: Site) -> Iterator[None]:
    with site.client() as client, connect(site.server) as backup:
        create_queue(client, "m")
        consumer = Consumer(site.client(), "STREAM * FROM m")
        eventually(lambda: site.proxy.metric("streams") == 1)
        run(client, "INSERT INTO m (time_next) VALUES ((UNIX_TIMESTAMP() + 2) * 1000000000)")
        run(backup, "FLUSH TABLES WITH READ LOCK")
        yield
        assert consumer.received == []
        run(backup, "UNLOCK TABLES")
        eventually(lambda: len(consumer.received) == 1, timeout_s=30)
        consumer.vanish()


@contextlib.contextmanager
def certificate_expires(site: Site) -> Iterator[None]:
    made = make_certificates(site.folder / "certificates", days=13)
    options = ["--tls-certificate", str(made.certificate), "--tls-key", str(made.key)]
    site.settings = Settings(tls_certificate=made.certificate, tls_key=made.key)
    with running_proxy(site.server, site.folder / "expiring", options) as site.proxy:
        yield


@contextlib.contextmanager
def no_binary_log(site: Site) -> Iterator[None]:
    """Two restarts: it is off after the first, and followed soon after the second."""
    usual = site.server._options
    site.server.stop()
    site.server._options = (*usual, "--skip-log-bin")
    site.server.start()
    yield
    site.server.stop()
    site.server._options = usual
    site.server.start()
    eventually(lambda: site.proxy.metric("binlog_following") == 1, timeout_s=WITHIN_S)


Incident = Callable[[Site], contextlib.AbstractContextManager[None]]

OF_A_QUEUE: Mapping[str, Incident] = {
    "The engine's account has lost a privilege": revoked,
    "The comment of a table is wrong": bad_comment,
    "The index is gone": no_index,
    "Times are in another unit": other_unit,
    "A worker hangs": hanging_worker,
    "A wait is over": wait_is_over,
    "A message comes again and again": poison,
    "Nobody consumes": no_consumer,
    "Dead letters cannot be moved": dead_letters_stay,
    "The server refuses a row": refused_row,
    "The certificate expires": certificate_expires,
}
OF_THE_SERVER: Mapping[str, Incident] = {
    "The server is out of reach": out_of_reach,
    "The server is read-only": read_only,
    "Connections are refused (1040)": exhausted,
    "Writes stall": stalled,
    "The binary log is off": no_binary_log,
}


def rows_of_the_page() -> dict[str, list[list[str]]]:
    """What each row quotes, by its incident: on the page, in the log, of alerts, by doctor."""
    text = (REPOSITORY / "docs" / "troubleshooting.md").read_text()
    table = text.partition("## Incidents")[2].partition("\n## ")[0]
    cells = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return {name: [re.findall(r"`([^`]+)`", cell) for cell in rest] for name, *rest in cells[1:]}


def test_each_row_is_an_incident_that_is_made() -> None:
    assert rows_of_the_page().keys() == OF_A_QUEUE.keys() | OF_THE_SERVER.keys()


def test_the_alerts_fire_after_a_minute_at_most() -> None:
    rules = dict(ALERT.findall(ALERTS))
    for _, _, alerts, _ in rows_of_the_page().values():
        for alert in alerts:
            waits = re.findall(r"for: (\d+)([sm])", rules[alert])
            assert [number for number, unit in waits if int(number) > (1 if unit == "m" else 60)] == [], alert


def check(site: Site, incident: str, makes: Incident) -> None:
    page, log, alerts, doctor = rows_of_the_page()[incident]
    with makes(site):
        for text in page:
            eventually(partial(site.shows, text), timeout_s=WITHIN_S, what=text)
        for event in log[:1]:
            eventually(partial(site.has_logged, event), timeout_s=WITHIN_S, what=event)
        for alert in alerts:
            eventually(partial(site.holds, alert), timeout_s=WITHIN_S, what=alert)
        assert set(doctor) <= set(site.found_by_doctor())


@pytest.mark.parametrize("incident", OF_A_QUEUE)
def test_the_cause_of_an_incident_of_a_queue_is_named(
    server: EmbeddedServer, proxy: RunningProxy, database: str, tmp_path: Path, incident: str
) -> None:
    with connect(server) as root:
        check(Site(server, proxy, root, database, tmp_path), incident, OF_A_QUEUE[incident])


@pytest.mark.parametrize("incident", OF_THE_SERVER)
def test_the_cause_of_an_incident_of_the_server_is_named(
    private_server: EmbeddedServer, private_proxy: RunningProxy, tmp_path: Path, incident: str
) -> None:
    with connect(private_server) as root:
        run(root, "CREATE DATABASE shop")
        check(Site(private_server, private_proxy, root, "shop", tmp_path), incident, OF_THE_SERVER[incident])
