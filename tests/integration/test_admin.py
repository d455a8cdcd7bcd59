"""The admin port: what is counted in the database, and the probes."""

from __future__ import annotations

import base64
import contextlib
import gzip
import html
import re
import resource
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
from prometheus_client.parser import text_string_to_metric_families

from proxy.embedded.server import EmbeddedServer
from proxy.settings import BadSetting, load
from tests.support.proxies import RunningProxy, running_proxy
from tests.support.queues import Consumer, create_queue, enqueue, rows, run
from tests.support.servers import connect
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

TOKEN = "0123456789abcdef"
SELF_SIGNED = ssl._create_unverified_context()


def answer(proxy: RunningProxy, path: str, *, scheme: str = "http", **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(f"{scheme}://127.0.0.1:{proxy.admin_port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30, context=SELF_SIGNED) as found:
            return found.status, found.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def of_queue(proxy: RunningProxy, database: str, queue: str) -> dict[str, float]:
    """The metrics of a queue, without `ackstream_queue_` before their names."""
    status, text = answer(proxy, "/metrics")
    assert status == 200
    return {
        sample.name.removeprefix("ackstream_queue_") + sample.labels.get("reason", "") + sample.labels.get("le", ""):
            sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if (sample.labels.get("db"), sample.labels.get("queue")) == (database, queue)
    }  # fmt: skip


def test_what_the_database_holds_of_a_queue_is_counted_as_show_queues_does_it(
    private_proxy: RunningProxy, private_server: Any
) -> None:
    with connect(private_server) as root, root.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
    with private_proxy.connect(database="shop") as client:
        run(client, "CREATE QUEUE m (payload TEXT) MAX_ATTEMPTS = 9 DEAD_LETTER = m_dead")
        enqueue(client, "m", "abcdef")
        run(client, "INSERT INTO m_dead (epoch) VALUES (9), (9)")
        assert len(rows(client, "STREAM * FROM m LIMIT 3 NOWAIT")) == 3
        run(client, "ACK m WHERE id = 1")
        run(client, "NACK m WHERE id = 2 DELAY 3600")
        wanted = {"ready": 3, "scheduled": 1, "leased": 1, "retained": 1, "dead": 2}

        def counted() -> bool:
            found = of_queue(private_proxy, "shop", "m")
            return wanted.items() <= found.items() and found["acknowledged_total"] == found["given_back_total"] == 1

        eventually(counted, timeout_s=40)
        found = of_queue(private_proxy, "shop", "m")
        assert found["oldest_ready_age_seconds"] > 0
        assert found["delivered_total"] == found["pickup_delay_seconds_count"] == 3
        assert found["acknowledge_delay_seconds_count"] == 1
        assert (found["held_backno_consumer"], found["held_backlimit"]) == (0, 0)  # It was polled a moment ago.
        with client.cursor(pymysql.cursors.DictCursor) as cursor:
            cursor.execute("SHOW QUEUES FROM shop LIKE 'm'")
            row = cursor.fetchone()
        assert row is not None
        shown = {"ready": row["Ready"], "scheduled": row["Scheduled"], "leased": row["In_flight"]}
        assert shown.items() <= wanted.items()


def test_statements_are_counted_by_what_becomes_of_them(private_proxy: RunningProxy, private_server: Any) -> None:
    with connect(private_server) as root, root.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
    with private_proxy.connect(database="shop") as client:
        create_queue(client, "m")
        run(client, "DO 1")
        assert rows(client, "STREAM * FROM m NOWAIT") == []
        text = answer(private_proxy, "/metrics")[1].decode()
    counts = {
        sample.labels["class"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "ackstream_statements_total"
    }
    assert counts["stream"] == 1
    assert counts["relayed"] >= 2


PATHS = (
    "/",
    "/?part=content",
    "/queue",
    "/messages",
    "/message",
    "/proxies",
    "/sign-in",
    "/act",
    "/page.js",
    "/metrics",
    "/livez",
    "/readyz",
    "/health",
)


PROBES = ("/livez", "/readyz", "/health")
NOTHING = ("/queue", "/messages", "/message", "/absent")
"""They name no queue."""


def test_pages_and_metrics_are_compressed_for_who_takes_that(proxy: RunningProxy) -> None:
    for path in ("/", "/?part=content", "/proxies", "/page.js", "/metrics"):
        plain, packed = answer(proxy, path)[1], answer(proxy, path, **{"Accept-Encoding": "gzip"})[1]
        assert packed[:2] == b"\x1f\x8b"
        assert len(gzip.decompress(packed)) > 0.8 * len(plain) > len(packed)


def test_without_a_token_everything_answers_to_names_of_this_machine_alone(proxy: RunningProxy) -> None:
    for path in PATHS:
        assert answer(proxy, path, Host=f"localhost:{proxy.admin_port}")[0] == (404 if path in NOTHING else 200)
        status, text = answer(proxy, path, Host="queues.example:9307")
        assert status == 403
        assert b"ssh -L" in text


def test_a_probe_that_names_no_host_is_answered(proxy: RunningProxy) -> None:
    """As HAProxy's: its requests are of HTTP/1.0."""
    with socket.create_connection(("127.0.0.1", proxy.admin_port), 30) as probe:
        probe.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert probe.makefile("rb").read().startswith(b"HTTP/1.0 200")


def test_clients_log_in_and_probes_are_answered_however_many_silent_connections_there_are(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    with running_proxy(server, tmp_path / "log") as proxy, contextlib.ExitStack() as stack:
        soft, hard = resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE)
        fewer = min(256, soft)
        resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE, (fewer, hard))
        for _ in range(fewer + 50):
            stack.enter_context(socket.create_connection(("127.0.0.1", proxy.admin_port), 30))
        assert answer(proxy, "/readyz")[0] == 200
        with proxy.connect() as client:
            assert rows(client, "SELECT 1") == [(1,)]
        assert proxy.output.count("admin.full") == 1


@pytest.mark.parametrize("set_", [(), ("admin_tls",), ("admin_token_file",)], ids=["none", "TLS", "token"])
def test_elsewhere_than_on_loopback_a_token_and_tls_are_required(tmp_path: Path, set_: tuple[str, ...]) -> None:
    values = protection(tmp_path)
    text = "".join(f"{name} = {values[name]}\n" for name in set_)
    (tmp_path / "settings.toml").write_text(f"admin = '0.0.0.0:0'\nbackend = 'mysql://root@127.0.0.1:1'\n{text}")
    argv = [sys.executable, "-m", "proxy", "serve", "--config", str(tmp_path / "settings.toml")]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("ackstream: --admin 0.0.0.0:0: other machines can reach 0.0.0.0: set admin_")
    assert ["admin_tls = true" in line, "admin_token_file" in line] == [name not in set_ for name in values]


def test_a_short_token_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("short")
    with pytest.raises(BadSetting, match="admin_token_file: the token has fewer than 16 characters"):
        load({"admin_token_file": str(tmp_path / "token")}, None)


def test_with_a_token_all_but_the_probes_requires_it(server: EmbeddedServer, tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text(
        "".join(f"{name} = {value}\n" for name, value in protection(tmp_path).items())
    )
    options = ["--admin", "0.0.0.0:0", "--config", str(tmp_path / "settings.toml")]
    with running_proxy(server, tmp_path / "log", options) as proxy:
        for path in PROBES:
            assert answer(proxy, path, scheme="https")[0] == 200
        basic = "Basic " + base64.b64encode(f"anybody:{TOKEN}".encode()).decode()
        wrong = "Basic " + base64.b64encode(b"anybody").decode()
        for path in (*(path for path in PATHS if path not in PROBES), "/absent"):
            for shown in (
                {},
                {"Authorization": f"Bearer {TOKEN}x"},
                {"Authorization": wrong},
                {"Authorization": TOKEN},
            ):
                assert answer(proxy, path, scheme="https", **shown)[0] == 401
            for scheme in (f"Bearer {TOKEN}", f"bearer {TOKEN}", basic):
                status, _ = answer(proxy, path, scheme="https", Authorization=scheme, Host="queues.example")
                assert status == (404 if path in NOTHING else 200)
        with pytest.raises(OSError, match=r"RemoteDisconnected|reset|without response"):
            answer(proxy, "/livez")


def protection(folder: Path) -> dict[str, str]:
    """The settings of a protected admin port, as TOML."""
    (folder / "token").write_text(f"{TOKEN}\n")
    (folder / "token").chmod(0o600)
    return {"admin_tls": "true", "admin_token_file": f"'{folder / 'token'}'"}


@pytest.fixture
def filled(proxy: RunningProxy, database: str) -> Iterator[Any]:
    with proxy.connect(database=database) as client:
        run(client, "CREATE QUEUE m (payload TEXT, tenant VARCHAR(20)) GROUP_BY = tenant REASON = reason")
        run(
            client,
            "INSERT INTO m (payload, tenant) VALUES ('<i>secret</i>', '<b>'), ('secret', '<b>'), ('secret', 'c')",
        )
        run(client, "INSERT INTO m (payload, time_next) VALUES ('secret', 4000000000000000000)")
        (row, *_) = rows(client, "STREAM id, epoch FROM m LIMIT 1 NOWAIT")
        run(client, f"NACK m WHERE id = {row[0]} DELAY 100 REASON 'it <failed>'")
        yield client


def page(proxy: RunningProxy, path: str, **query: object) -> str:
    status, text = answer(proxy, f"{path}?{urllib.parse.urlencode(query)}")
    assert status == 200
    return text.decode()


def test_the_page_of_a_queue_shows_what_is_in_it_and_no_payload(
    proxy: RunningProxy, database: str, filled: Any
) -> None:
    stream = Consumer(proxy.connect(database=database), "STREAM * FROM m WHERE payload <> 'secret' LIMIT 100")
    ending = f"KILL QUERY {stream.connection.thread_id()}"
    eventually(lambda: ending in page(proxy, "/queue", db=database, name="m"))
    text = page(proxy, "/queue", db=database, name="m")
    stream.vanish()
    assert "it &lt;failed&gt;" in text
    assert "&lt;b&gt;</th><td class=n>1</td><td class=n>1</td>" in text
    assert "ACK_WAIT" in text
    assert f"PAUSE QUEUE `{database}`.`m`" in text
    assert "<b>" not in text
    assert "secret" not in text
    for state in ("ready", "scheduled", "in+flight"):
        assert f"/messages?db={database}&amp;name=m&amp;state={state}" in text


def listed(proxy: RunningProxy, path: str) -> tuple[list[str], str | None]:
    """The ids on a page of messages, and the address of the next page."""
    status, text = answer(proxy, path)
    assert status == 200
    further = re.search(r'href="([^"]+)">Next page<', text.decode())
    return re.findall(r"/message[?][^>]*>([^<]*)</a></th>", text.decode()), further and html.unescape(further[1])


def all_listed(proxy: RunningProxy, **query: str) -> list[str]:
    """The ids on all pages."""
    found: list[str] = []
    path: str | None = f"/messages?{urllib.parse.urlencode(query)}"
    while path is not None:
        ids, path = listed(proxy, path)
        assert len(ids) <= 50
        found += ids
    return found


@pytest.mark.parametrize("order", ["", " DESC"], ids=["ascending", "descending"])
def test_the_pages_of_messages_show_each_one_once(
    proxy: RunningProxy, server: EmbeddedServer, database: str, order: str
) -> None:
    """In the order of the index, whatever their priorities and times are."""
    with connect(server, database=database) as root:
        create_queue(root, "m")
        run(root, f"ALTER TABLE m DROP INDEX next_idx, ADD INDEX next_idx (time_acked, priority, time_next{order})")
        later = 4 * 10**18
        times = ["NULL", "0", "7", "8", *map(str, range(later, later + 3))]
        values = [(number % 3, times[number % len(times)]) for number in range(300)]
        run(root, f"INSERT INTO m (priority, time_next) VALUES {', '.join(f'({a}, {b})' for a, b in values)}")
        expected = {"ready": "COALESCE(time_next, 0) < 10", "scheduled": "time_next > 10", "in flight": "FALSE"}
        eventually(lambda: answer(proxy, f"/messages?db={database}&name=m")[0] == 200, timeout_s=30)
        for state, condition in expected.items():
            there = rows(root, f"SELECT id FROM m WHERE {condition} ORDER BY priority, time_next{order}, id")
            assert all_listed(proxy, db=database, name="m", state=state) == [str(id_) for (id_,) in there]


def test_messages_are_found_by_reason_and_group_and_dead_letters_in_their_own_table(
    proxy: RunningProxy, database: str, filled: Any
) -> None:
    place = {"db": database, "name": "m"}
    run(filled, "ALTER QUEUE m MAX_ATTEMPTS = 5 DEAD_LETTER = m_dead")
    run(
        filled,
        "INSERT INTO m_dead (id, epoch, reason, tenant) VALUES (1, 5, 'no such address', 'c'), (2, 5, 'late', 'c')",
    )
    given_back = all_listed(proxy, **place, state="scheduled", reason="IT <FAIL")
    assert len(given_back) == 1
    assert all_listed(proxy, **place, state="scheduled", reason="no such") == []
    assert sorted(all_listed(proxy, **place, group="<b>") + given_back) == ["1", "2"]
    assert all_listed(proxy, **place, group="c") == ["3"]
    for unknown in ("<b", "", "c' OR '1"):
        assert all_listed(proxy, **place, group=unknown) == (["2", "3"] if not unknown else [])
    eventually(lambda: f"db={database}&amp;name=m_dead&amp;state=dead" in page(proxy, "/messages", **place))
    dead = {**place, "name": "m_dead", "state": "dead"}
    eventually(lambda: answer(proxy, f"/messages?{urllib.parse.urlencode(dead)}")[0] == 200, timeout_s=30)
    assert all_listed(proxy, **dead) == ["1", "2"]
    assert all_listed(proxy, **dead, reason="address") == ["1"]
    for nonsense in ("1", "1.2.x", "a.b.c", f"1.{10**30}.31", "0.0.00ff", f"0..{'31' * 40}"):
        assert answer(proxy, f"/messages?{urllib.parse.urlencode({**dead, 'after': nonsense})}")[0] == 200


def waiting(proxy: RunningProxy, database: str, queue: str, key: str) -> list[list[str]]:
    """The rows of one of the tables of what waits, on the page of a queue."""
    section = page(proxy, "/queue", db=database, name=queue).partition(f'id="{key}"')[2].partition("</table>")[0]
    found = section.partition("<tbody>")[2].split("</tr>")[:-1]
    return [re.findall(r">([^<>]*)</t[hd]>", row) for row in found]


def test_the_page_of_a_queue_shows_groups_semaphores_and_batches_with_what_they_wait_for(
    proxy: RunningProxy, database: str
) -> None:
    with proxy.connect(database=database) as client:
        run(client, "CREATE QUEUE g (tenant VARCHAR(20)) GROUP_BY = (tenant) GROUP_LIMIT = 1 ACK_WAIT = 600")
        run(client, "INSERT INTO g (tenant) VALUES ('<acme>'), ('<acme>'), (NULL)")
        assert len(rows(client, "STREAM id FROM g LIMIT 2 WAIT 20")) == 2
        eventually(lambda: len(waiting(proxy, database, "g", "message-groups")) == 2, timeout_s=30)
        found = waiting(proxy, database, "g", "message-groups")
        assert [(row[0], *row[1:4], row[5]) for row in found] == [
            ("–", "0", "0", "1", "–"),
            ("&lt;acme&gt;", "1", "0", "1", "GROUP_LIMIT"),
        ]
        run(client, "CREATE QUEUE s (needs VARCHAR(100)) SEMAPHORES = (needs) ACK_WAIT = 600")
        run(client, "CREATE SEMAPHORE crane CAPACITY 1")
        run(client, "INSERT INTO s (needs) VALUES ('crane'), ('crane'), ('ghost')")
        assert len(rows(client, "STREAM id FROM s LIMIT 1 WAIT 20")) == 1
        eventually(lambda: len(waiting(proxy, database, "s", "semaphores")) == 2, timeout_s=30)
        assert waiting(proxy, database, "s", "semaphores") == [
            ["crane", "1", "1", "1", "a place"],
            ["ghost", "–", "0", "1", "it does not exist: CREATE SEMAPHORE"],
        ]
        run(client, "CREATE QUEUE b (body TEXT) BATCHES")
        run(client, "INSERT INTO b (batch, body) VALUES (7, 'x'), (7, 'y')")
        run(client, "INSERT INTO b (after_batch, body) VALUES (7, 'then')")
        eventually(
            lambda: waiting(proxy, database, "b", "batches") == [["7", "2", "0", "0", "1", "2 parts"]], timeout_s=30
        )


def test_the_page_of_a_message_shows_its_payload_only_if_that_is_allowed(
    proxy: RunningProxy, server: EmbeddedServer, database: str, filled: Any, tmp_path: Path
) -> None:
    text = page(proxy, "/message", db=database, name="m", id="1")
    assert "it &lt;failed&gt;" in text
    assert "secret" not in text
    assert f"NACK `{database}`.`m` WHERE id = 1" in text
    (tmp_path / "settings.toml").write_text("admin_show_payload = true")
    with running_proxy(server, tmp_path / "log", ["--config", str(tmp_path / "settings.toml")]) as open_one:
        assert "&lt;i&gt;secret&lt;/i&gt;" in page(open_one, "/message", db=database, name="m", id="1")
    run(filled, "ACK m WHERE id = 1")
    assert "acknowledged" in page(proxy, "/message", db=database, name="m", id="1")


@pytest.mark.parametrize("id_", ["5", "x", "1 OR 1", "1'", "", "٣", "9" * 30])
def test_an_id_that_no_message_has_is_said_to_be_absent(
    proxy: RunningProxy, database: str, filled: Any, id_: str
) -> None:
    status, text = answer(proxy, f"/message?{urllib.parse.urlencode({'db': database, 'name': 'm', 'id': id_})}")
    assert (status, b"The queue has no message with this id" in text) == (404, True)


@pytest.mark.parametrize(
    ("kind", "literal", "shown", "in_sql"),
    [
        ("VARCHAR(20) CHARACTER SET utf8mb4", "'a-1'", "a-1", "'a-1'"),
        ("VARCHAR(20) CHARACTER SET latin1", "'ä''\\\\'", "ä'\\", "_utf8mb4 x'c3a4275c'"),
        ("VARBINARY(20)", "x'00ff27'", "00ff27", "x'00ff27'"),
        ("DECIMAL(10,2)", "1.5", "1.50", "'1.50'"),
        ("DATETIME(3)", "'2026-01-02 03:04:05.678'", "2026-01-02 03:04:05.678", "'2026-01-02 03:04:05.678'"),
    ],
    ids=["text", "latin1", "binary", "decimal", "datetime"],
)
def test_messages_are_found_by_ids_of_any_kind(
    proxy: RunningProxy, database: str, kind: str, literal: str, shown: str, in_sql: str
) -> None:
    with proxy.connect(database=database) as client:
        run(client, f"CREATE QUEUE m (id {kind} PRIMARY KEY, payload TEXT)")
        run(client, f"INSERT INTO m (id) VALUES ({literal})")
        assert urllib.parse.urlencode({"id": shown}) in page(proxy, "/messages", db=database, name="m")
        text = page(proxy, "/message", db=database, name="m", id=shown)
        (statement,) = re.findall(r"<pre>(ACK .*?);</pre>", text)
        assert html.unescape(statement) == f"ACK `{database}`.`m` WHERE id = {in_sql}"
        assert run(client, html.unescape(statement)) == 1


def test_a_table_that_cannot_be_a_queue_has_its_problems_on_its_page(
    proxy: RunningProxy, server: EmbeddedServer, database: str, filled: Any
) -> None:
    with connect(server) as root:
        run(root, f"ALTER TABLE {database}.m COMMENT 'vitess_message,vt_ack_wait=x'")
    text = page(proxy, "/queue", db=database, name="m")
    eventually(lambda: "vt_ack_wait" in page(proxy, "/queue", db=database, name="m"), timeout_s=20)
    eventually(lambda: "queue.unusable" in page(proxy, "/queue", db=database, name="m"), timeout_s=20)
    status, text_of_none = answer(proxy, f"/queue?db={database}&name=absent")
    assert (status, b"There is no such queue" in text_of_none) == (404, True)
    assert text


def test_messages_are_found_by_a_column_with_an_index_where_payloads_are_shown(
    proxy: RunningProxy, server: EmbeddedServer, database: str, tmp_path: Path
) -> None:
    with proxy.connect(database=database) as client:
        run(
            client,
            "CREATE QUEUE m (city VARCHAR(20) CHARACTER SET latin1, tag BINARY(2), price DECIMAL(6,2), note TEXT,"
            " KEY (city), KEY (tag), KEY (price))",
        )
        cities = ", ".join(f"('{('Köln', 'Rom')[at % 2]}', x'00ff', 1.5)" for at in range(160))
        run(client, f"INSERT INTO m (city, tag, price) VALUES {cities}")
        run(client, "ACK m WHERE id = 1")
        run(client, "UPDATE m SET time_next = 4000000000000000000 WHERE id = 3")
    (tmp_path / "settings.toml").write_text("admin_show_payload = true")
    place = {"db": database, "name": "m"}
    with running_proxy(server, tmp_path / "log", ["--config", str(tmp_path / "settings.toml")]) as shown:
        eventually(lambda: answer(shown, f"/messages?{urllib.parse.urlencode(place)}")[0] == 200, timeout_s=30)
        form = page(shown, "/messages", **place)
        assert [name for name in ("city", "tag", "price", "note", "id") if f"<option>{name}<" in form] == [
            "city",
            "tag",
            "price",
        ]
        ready = [str(at) for at in range(5, 161, 2)]
        assert all_listed(shown, **place, column="city", value="KÖLN") == ready
        assert all_listed(shown, **place, state="scheduled", column="city", value="köln") == ["3"]
        assert len(all_listed(shown, **place, column="tag", value="00ff")) == 158
        assert len(all_listed(shown, **place, column="price", value="1.50")) == 158
        for column, value in ("city", "東京"), ("tag", "x"), ("price", "1 OR 1"), ("note", "x"), ("id", "5"):
            assert all_listed(shown, **place, column=column, value=value) == []
    assert "<option>" not in page(proxy, "/messages", **place)
    assert all_listed(proxy, **place, column="city", value="Rom") == []


PROXY_ROW = re.compile(r"<tr><th scope=row>(ackstream/[0-9]+)</th>" + "<td[^>]*>(.*?)</td>" * 6 + "</tr>")


def proxies_shown(proxy: RunningProxy) -> dict[str, list[str]]:
    """The rows of the page of proxies, by slot."""
    return {slot: cells for slot, *cells in PROXY_ROW.findall(page(proxy, "/proxies"))}


def test_the_page_of_proxies_shows_what_show_proxies_does(private_server: EmbeddedServer, tmp_path: Path) -> None:
    """All proxies of the server: what each publishes, and of this one what it has."""
    (tmp_path / "other").mkdir()
    with (
        running_proxy(private_server, tmp_path / "log") as proxy,
        running_proxy(private_server, tmp_path / "other" / "log") as other,
        proxy.connect() as client,
    ):
        run(client, "CREATE DATABASE shop")
        run(client, "CREATE QUEUE shop.m (payload TEXT)")
        run(client, "INSERT INTO shop.m (payload) VALUES ('a'), ('b')")
        assert len(rows(client, "STREAM id FROM shop.m LIMIT 2 WAIT 20")) == 2

        def as_shown() -> bool:
            of_server = {f"ackstream/{row[0]}": row for row in rows(client, "SHOW PROXIES")}
            seen = proxies_shown(proxy)
            return (
                len(seen) == 2
                and seen.keys() == of_server.keys()
                and all(
                    cells[1] == (of_server[slot][2] or "–") and cells[5] == str(of_server[slot][6])
                    for slot, cells in seen.items()
                )
            )

        eventually(as_shown, timeout_s=30)
        eventually(lambda: sum(int(cells[4]) for cells in proxies_shown(proxy).values() if cells[4] != "–") == 2)
        for shown in (proxy, other):
            assert re.search(r"<dt>Memory</dt><dd>[1-9][0-9,]* MB", page(shown, "/proxies"))
            assert sum("this proxy" in cells[0] for cells in proxies_shown(shown).values()) == 1


HELD_ROW = re.compile(r"<tr><th scope=row>(?:<a[^>]*>)?([^<]*)(?:</a>)?</th>(.*?)</tr>")


def held_rows(proxy: RunningProxy, database: str) -> list[list[str]]:
    """The rows of who holds what on the page of queue `m`, each with the id first; none while the proxy does not know
    the queue."""
    _, text = answer(proxy, f"/queue?{urllib.parse.urlencode({'db': database, 'name': 'm'})}")
    section = text.decode().partition('id="held"')[2].partition("</table>")[0]
    return [[id_, *re.sub(r"<td[^>]*>", "", cells).split("</td>")[:-1]] for id_, cells in HELD_ROW.findall(section)]


def test_the_page_shows_who_holds_what_since_when_the_longest_first(
    proxy: RunningProxy, server: EmbeddedServer, database: str, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(running_proxy(server, tmp_path / "other.log"))
        one = stack.enter_context(proxy.connect(database=database, program_name="mailer <1>"))
        two = stack.enter_context(proxy.connect(database=database, program_name="mailer 2"))
        run(one, "CREATE QUEUE m (payload TEXT) ACK_WAIT = 600")
        enqueue(one, "m", "ab")
        assert len(rows(one, "STREAM id FROM m LIMIT 1 WAIT 20")) == 1
        assert len(rows(two, "STREAM id FROM m LIMIT 1 WAIT 20")) == 1
        first, second = held_rows(proxy, database)
        (slot,) = {row[0] for row in rows(one, "SHOW PROXIES") if row[4] is not None}
        for row, id_, client, program in (first, "1", one, "mailer &lt;1&gt;"), (second, "2", two, "mailer 2"):
            assert (row[0], row[1], row[4:6], row[7]) == (id_, "1", [str(client.thread_id()), "root"], program)
            assert row[2].endswith("s")  # Since when.
            assert row[6].startswith("127.0.0.1:")
            assert f"ackstream/{slot}" in row[8]
            assert row[9] == f"KILL {client.thread_id()}"

        # The other proxy knows where, and not by whom.
        eventually(lambda: len(held_rows(other, database)) == 2)
        for row in held_rows(other, database):
            assert (row[2], row[4:8]) == ("–", ["–"] * 4)
            assert f"ackstream/{slot}" in row[8]
        run(one, "ACK m WHERE id = 1")
        eventually(lambda: [row[0] for row in held_rows(proxy, database)] == ["2"])


def test_any_number_of_pages_reads_a_queue_once(proxy: RunningProxy, database: str, filled: Any) -> None:
    page(proxy, "/queue", db=database, name="m")
    before = proxy.metric("store_answers_total")
    for _ in range(20):
        page(proxy, "/queue", db=database, name="m", part="content")
    assert proxy.metric("store_answers_total") - before < 20
