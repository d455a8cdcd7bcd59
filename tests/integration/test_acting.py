"""Acting on the admin port's pages: with the rights of the account that has signed in, by a form of ours alone."""

from __future__ import annotations

import asyncio
import gc
import html
import http.client
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from types import CoroutineType, FrameType, FunctionType, ModuleType
from typing import Any

import pytest

from engine.store.opening import BackendAddress
from proxy.embedded.server import EmbeddedServer
from proxy.server import sign_ins
from proxy.server.acting import _back
from proxy.server.sign_ins import SignInRefusedError, SignIns
from tests.support.proxies import RunningProxy
from tests.support.queues import rows, run
from tests.support.servers import connect
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

ACCOUNT, PASSWORD = "clerk", "Lovage-1742"


Form = dict[str, list[str]]
"""The values of each field."""


class Visitor:
    """A browser's requests, with its cookies."""

    def __init__(self, proxy: RunningProxy) -> None:
        self.port, self.cookies = proxy.admin_port, dict[str, str]()
        self.set_cookie = ""

    def ask(
        self, method: str, path: str, form: Mapping[str, str | list[str]] | None = None, **headers: str
    ) -> tuple[int, str]:
        """Status and text. Headers that are empty are left out."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        sent = {"Cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items())}
        if method == "POST":
            sent |= {
                "Origin": f"http://127.0.0.1:{self.port}",
                "Content-Type": "application/x-www-form-urlencoded",
            }
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        body = None if form is None else urllib.parse.urlencode(form, doseq=True)
        connection.request(method, path, body, {name: value for name, value in sent.items() if value})
        answer = connection.getresponse()
        text = answer.read().decode()
        self.set_cookie = answer.getheader("Set-Cookie") or ""
        if found := re.match(r'([^=]+)="?([^";]*)"?;', self.set_cookie):
            self.cookies[found[1]] = found[2]
        connection.close()
        return answer.status, text

    def sign_in(self, user: str = ACCOUNT, password: str = PASSWORD, **headers: str) -> tuple[int, str]:
        return self.ask("POST", "/sign-in", {"user": user, "password": password, "back": "/"}, **headers)

    def sign_out(self) -> int:
        token = re.findall(r'name="token" value="([^"]+)"', self.ask("GET", "/")[1])
        return self.ask("POST", "/sign-out", {"token": "".join(token)})[0]

    def first_step(self, **asked: str | list[str]) -> Form:
        """The form of the page that shows a statement."""
        status, text = self.ask("GET", f"/act?{urllib.parse.urlencode(asked, doseq=True)}")
        assert status == 200
        form: Form = {}
        if 'action="/act"' in text:
            shown = text[text.rindex('<form method="post" action="/act"') :]
            for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', shown):
                form.setdefault(name, []).append(html.unescape(value))
        return form

    def act(self, **asked: str | list[str]) -> str:
        """Take both steps. Returns what the server has answered."""
        form = self.first_step(**asked)
        assert form, asked
        _, text = self.ask("POST", "/act", form)
        return html.unescape(re.findall(r"role=status>([^<]+)</p><p><a", text)[0])


@pytest.fixture
def clerk(server: EmbeddedServer, database: str) -> Iterator[str]:
    """An account with all rights on the database."""
    with connect(server) as root:
        run(root, f"CREATE USER {ACCOUNT}@'%' IDENTIFIED BY '{PASSWORD}'")
        run(root, f"GRANT ALL ON {database}.* TO {ACCOUNT}@'%'")
        yield ACCOUNT
        run(root, f"DROP USER {ACCOUNT}@'%'")


@pytest.fixture
def visitor(proxy: RunningProxy) -> Iterator[Visitor]:
    """A browser that signs out in the end: the proxy is that of other tests, too."""
    visitor = Visitor(proxy)
    yield visitor
    visitor.sign_out()


@pytest.fixture
def client(proxy: RunningProxy, database: str, clerk: str) -> Iterator[Any]:
    with proxy.connect(database=database) as client:
        run(client, "CREATE QUEUE m (payload TEXT) MAX_ATTEMPTS = 3 DEAD_LETTER = m_dead ACK_WAIT = 600")
        run(client, "INSERT INTO m (id, payload) VALUES (1, 'a'), (2, 'b'), (3, 'c')")
        yield client


def time_next(client: Any, id_: int) -> int | None:
    found = rows(client, f"SELECT time_next FROM m WHERE id = {id_}")
    return found[0][0] if found else None


def test_without_signing_in_the_pages_only_read(visitor: Visitor, database: str, client: Any) -> None:
    place = urllib.parse.urlencode({"db": database, "name": "m"})
    for path in (f"/queue?{place}", f"/message?{place}&id=1"):
        assert "/act?" not in visitor.ask("GET", path)[1]
    status, text = visitor.ask("GET", f"/act?{place}&do=pause")
    assert (status, 'name="password"' in text, 'action="/act"' in text) == (200, True, False)
    assert visitor.ask("POST", "/act", {"db": database, "name": "m", "do": "pause", "token": ""})[0] == 403
    assert visitor.cookies == {}


def test_who_has_signed_in_does_by_buttons_what_the_statements_do(visitor: Visitor, database: str, client: Any) -> None:
    place = {"db": database, "name": "m"}
    assert visitor.sign_in()[0] == 303
    assert re.search(r"HttpOnly.*SameSite=Strict|SameSite=Strict.*HttpOnly", visitor.set_cookie, re.IGNORECASE)
    assert "/act?" in visitor.ask("GET", f"/queue?{urllib.parse.urlencode(place)}")[1]

    paused = f"SHOW FULL QUEUES FROM {database} LIKE 'm'"
    form = visitor.first_step(**place, do="pause")
    assert form["statement"] == [f"PAUSE QUEUE `{database}`.`m`"]
    assert "paused" not in str(rows(client, paused))  # The first step runs nothing.
    assert visitor.act(**place, do="pause") == "0 rows affected."
    assert "paused" in str(rows(client, f"SHOW CREATE TABLE {database}.m"))
    eventually(lambda: visitor.first_step(**place, do="pause") == {})
    assert visitor.act(**place, do="resume") == "0 rows affected."

    (held,) = rows(client, "STREAM id FROM m LIMIT 1 WAIT 20")
    lease = time_next(client, held[0])
    assert visitor.act(**place, id=str(held[0]), do="nack") == "1 row affected."
    assert (time_next(client, held[0]) or 0) < (lease or 0)
    assert visitor.act(**place, id="2", do="reschedule", seconds="7200") == "1 row affected."
    assert (time_next(client, 2) or 0) > (lease or 0)
    assert visitor.act(**place, id="3", do="delete") == "1 row affected."
    assert time_next(client, 3) is None
    assert visitor.act(**place, id="1", do="ack") == "1 row affected."
    assert visitor.act(**place, do="purge") == "1 row affected."
    assert rows(client, "SELECT id FROM m") == [(2,)]


def test_dead_letters_are_brought_back_one_some_or_all(visitor: Visitor, database: str, client: Any) -> None:
    dead = {"db": database, "name": "m_dead"}
    run(client, f"INSERT INTO m_dead (id, epoch) VALUES {', '.join(f'({id_}, 3)' for id_ in range(11, 17))}")
    visitor.sign_in()
    eventually(lambda: visitor.first_step(**dead, id="11", do="redrive0") != {}, timeout_s=30)
    assert visitor.first_step(**dead, id="11", do="nack") == {}
    assert visitor.act(**dead, id="11", do="redrive0") == "1 row affected."
    assert visitor.first_step(**dead, state="dead", do="redrive0") == {}  # None is chosen, and not all.
    form = visitor.first_step(**dead, id=["12", "14", "99"], state="dead", do="redrive0")
    assert form["statement"] == [f"REDRIVE QUEUE `{database}`.`m_dead` TO `{database}`.`m` WHERE id IN (12, 14)"]
    _, text = visitor.ask("POST", "/act", form)
    assert "2 rows affected." in text
    assert f"/messages?db={database}&amp;name=m_dead&amp;state=dead" in text
    assert visitor.act(db=database, name="m", do="redrive") == "3 rows affected."
    assert [row[0] for row in rows(client, "SELECT id FROM m ORDER BY id")] == [1, 2, 3, *range(11, 17)]


def test_the_messages_of_a_list_are_chosen_by_who_has_signed_in_alone(
    visitor: Visitor, database: str, client: Any
) -> None:
    place = urllib.parse.urlencode({"db": database, "name": "m", "state": "ready"})
    assert "checkbox" not in visitor.ask("GET", f"/messages?{place}")[1]
    visitor.sign_in()
    _, text = visitor.ask("GET", f"/messages?{place}")
    assert re.findall(r'type=checkbox name="id" value="(\d+)"', text) == ["1", "2", "3"]
    buttons = re.findall(r'<button[^>]* name="do" value="(\w+)"', text)
    assert buttons == ["nack", "reschedule", "ack", "delete"]
    chosen: dict[str, Any] = {"db": database, "name": "m", "state": "ready", "id": ["1", "3"]}
    for do, statement in (
        ("nack", "NACK {} WHERE id IN (1, 3)"),
        ("ack", "ACK {} WHERE id IN (1, 3)"),
        ("delete", "DELETE FROM {} WHERE id IN (1, 3) AND time_acked IS NULL"),
    ):
        assert visitor.first_step(**chosen, do=do)["statement"] == [statement.format(f"`{database}`.`m`")]
    assert visitor.act(**chosen, do="reschedule", seconds="60") == "2 rows affected."
    assert visitor.act(**chosen, do="delete") == "2 rows affected."
    assert rows(client, "SELECT id FROM m") == [(2,)]


def test_an_account_without_a_right_sees_the_servers_error(
    visitor: Visitor, server: EmbeddedServer, database: str, client: Any
) -> None:
    status, text = visitor.sign_in(password="wrong")
    assert (status, "(1045) Access denied" in text, visitor.cookies) == (200, True, {})
    with connect(server) as root:
        run(root, f"REVOKE ALL ON {database}.* FROM {ACCOUNT}@'%'")
        run(root, f"GRANT SELECT ON {database}.m TO {ACCOUNT}@'%'")
    run(client, "ACK m WHERE id = 3")
    visitor.sign_in()
    for asked in (
        {"do": "purge"},
        {"do": "delete", "id": "1"},
        {"do": "reschedule", "id": "1"},
        {"do": "nack", "id": "1"},
    ):
        assert visitor.act(db=database, name="m", **asked).startswith("(1142) "), asked
    assert visitor.act(db=database, name="m", do="pause").startswith("(1142) ")
    assert rows(client, "SELECT id, time_acked IS NULL FROM m") == [(1, 1), (2, 1), (3, 0)]


def test_a_form_is_taken_from_our_pages_alone(
    proxy: RunningProxy, visitor: Visitor, database: str, client: Any
) -> None:
    other_sites = (
        {"Origin": ""},
        {"Origin": "null"},
        {"Origin": "http://evil.example"},
        {"Origin": f"http://127.0.0.1:{proxy.admin_port + 1}"},
        {"Origin": f"https://127.0.0.1:{proxy.admin_port}"},
        {"Sec_Fetch_Site": "same-site"},
        {"Host": f"evil.example:{proxy.admin_port}", "Origin": f"http://evil.example:{proxy.admin_port}"},
    )
    for headers in other_sites:
        assert visitor.sign_in(**headers)[0] == 403
    assert visitor.sign_in(Content_Type="text/plain")[0] == 415
    assert visitor.cookies == {}
    visitor.sign_in()
    form = visitor.first_step(db=database, name="m", do="pause")
    for headers in other_sites:
        assert visitor.ask("POST", "/act", form, **headers)[0] == 403
        assert visitor.ask("POST", "/sign-out", form, **headers)[0] == 403
    for changed in ({"token": [""]}, {"token": ["x" * 43]}, {"token": ["ä"]}):
        assert visitor.ask("POST", "/act", form | changed)[0] == 403
    assert Visitor(proxy).ask("POST", "/act", form)[0] == 403
    _, text = visitor.ask("POST", "/act", form | {"statement": ["DROP TABLE m"]})
    assert "It is not what was shown" in text
    assert visitor.ask("POST", "/act", form | {"id": ["1" * 40_000]})[0] == 413
    assert "paused" not in str(rows(client, f"SHOW CREATE TABLE {database}.m"))


def test_signing_out_ends_the_connection(visitor: Visitor, server: EmbeddedServer, clerk: str) -> None:
    with connect(server) as root:
        connections = f"SELECT id FROM information_schema.processlist WHERE user = '{clerk}'"
        before = set(rows(root, connections))
        visitor.sign_in()
        stolen = dict(visitor.cookies)
        assert len(set(rows(root, connections)) - before) == 1
        assert visitor.sign_out() == 303
        eventually(lambda: set(rows(root, connections)) <= before)
    visitor.cookies = stolen
    assert "Sign out" not in visitor.ask("GET", "/")[1]


def own(proxy: RunningProxy) -> SignIns:
    return SignIns(lambda user, password: BackendAddress("127.0.0.1", proxy.port, user, password, tls=True))


def held_by(root: object) -> set[str | bytes]:
    """The texts that an object leads to, other than by code, which leads to this module."""
    reached, texts, left = set[int](), set[str | bytes](), [root]
    while left:
        one: Any = left.pop()
        if id(one) not in reached and not isinstance(one, type | FunctionType | ModuleType | FrameType | CoroutineType):
            reached.add(id(one))
            texts |= {bytes(one)} if isinstance(one, bytearray) else {one} if isinstance(one, str | bytes) else set()
            left += gc.get_referents(one)
    return texts


def test_a_session_that_is_idle_or_old_ends_and_none_keeps_the_password(
    proxy: RunningProxy, clerk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        sessions = own(proxy)
        await sessions.sign_in(clerk, PASSWORD)
        assert not {PASSWORD, PASSWORD.encode()} & held_by(sessions)
        for bound in ("IDLE_S", "LASTS_S"):
            again = await sessions.sign_in(clerk, PASSWORD)
            assert sessions.of(again.cookie, used=True) is again
            with monkeypatch.context() as patch:
                patch.setattr(sign_ins, bound, -1.0)
                assert sessions.of(again.cookie, used=True) is None
        await sessions.close()

    asyncio.run(play())


def test_sessions_and_tries_are_bounded(proxy: RunningProxy, clerk: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sign_ins, "SIGNED_IN_MAX", 1)
    monkeypatch.setattr(sign_ins, "REFUSED_PAUSE_S", 0.1)

    async def refusal(sessions: SignIns, password: str) -> str:
        try:
            await sessions.sign_in(clerk, password)
        except SignInRefusedError as error:
            return str(error)
        return ""

    async def play() -> None:
        sessions = own(proxy)
        tries = await asyncio.gather(*(refusal(sessions, "wrong") for _ in range(20)))
        assert tries.count(sign_ins.BUSY) == 20 - sign_ins.TRIES_WAITING_MAX
        assert sum("(1045)" in text for text in tries) == sign_ins.TRIES_WAITING_MAX
        assert await refusal(sessions, PASSWORD) == ""
        assert await refusal(sessions, PASSWORD) == sign_ins.FULL
        await sessions.close()

    asyncio.run(play())


@pytest.mark.parametrize(
    "back",
    [
        "//evil.example/",
        "/\\evil.example",
        "https://evil.example/queue",
        "javascript:alert(1)",
        "/metrics",
        "/act?do=x",
    ],
)
def test_signing_in_leads_to_a_page_of_ours(back: str) -> None:
    assert _back(back) == "/"
    assert _back("/queue?db=shop&name=m") == "/queue?db=shop&name=m"
