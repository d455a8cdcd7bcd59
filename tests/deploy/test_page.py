"""The admin port's page in a real browser: it loads, stays up to date, survives a restart of its proxy, and axe-core
finds nothing. PICTURES=docs/pictures makes the pictures of docs/ here, and STATES=FOLDER those of each state."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import Tab, opened
from tests.support.proxies import RunningProxy
from tests.support.queues import enqueue, rows, run
from tests.support.servers import cache_dir, connect
from tests.support.shop import Shop

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(180)]

PREPARE = (Path(__file__).parents[2] / "scripts" / "prepare").read_text()
AXE = cache_dir() / re.findall(r"^axe=(.+)$", PREPARE, re.MULTILINE)[0] / "node_modules" / "axe-core" / "axe.min.js"
OFFENCES = "axe.run().then(found => found.violations.map(one => one.id + ': ' + one.nodes[0].html))"
FITS = "document.documentElement.scrollWidth <= innerWidth"
WAIT_S = 40.0


@pytest.fixture
def filled(private_proxy: RunningProxy, private_server: Any) -> RunningProxy:
    with connect(private_server) as root, root.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
    with private_proxy.connect(database="shop") as client:
        run(client, "CREATE QUEUE orders (payload TEXT) MAX_ATTEMPTS = 5 DEAD_LETTER = orders_dead")
        run(client, "CREATE QUEUE `mails<b>&` (payload TEXT)")
        run(client, "CREATE QUEUE reports (payload TEXT)")
        enqueue(client, "orders", "abcdefgh")
        enqueue(client, "reports", "abc")
        run(client, "INSERT INTO orders_dead (epoch) VALUES (5), (5)")
        run(client, "PAUSE QUEUE reports")
        assert len(rows(client, "STREAM * FROM orders LIMIT 3 NOWAIT")) == 3
        run(client, "ACK orders WHERE id = 1")
    return private_proxy


def address(proxy: RunningProxy) -> str:
    return f"http://127.0.0.1:{proxy.admin_port}/"


async def becomes(tab: Tab, expression: str, wait_s: float = WAIT_S) -> None:
    """Wait until an expression is true in the page."""
    poll = f"new Promise(done => {{ const look = () => ({expression}) ? done(true) : setTimeout(look, 50); look() }})"
    assert await asyncio.wait_for(tab.evaluate(poll), wait_s)


async def inoffensive(tab: Tab) -> None:
    """The page fits the window, and axe-core finds nothing."""
    assert await tab.evaluate(FITS)
    await tab.evaluate(AXE.read_text() + "; 0")
    assert await tab.evaluate(OFFENCES) == []


def browse(proxy: RunningProxy, folder: Path, visit: Callable[[Tab], Awaitable[None]], path: str = "") -> None:
    async def session() -> None:
        async with opened(folder / "profile") as tab:
            place = address(proxy) + path
            seen = await tab.look(place)
            assert all(url.startswith((address(proxy), "data:")) for url in seen.requests)
            if not path:
                await becomes(tab, "document.querySelector('tbody').textContent.includes('orders_dead')")
            await visit(tab)
            assert (await tab.seen(place)).complaints == []

    asyncio.run(session())


READY = "[...document.querySelectorAll('tbody tr')].find(row => row.cells[0].textContent.startsWith('shop.orders'))"


def test_the_page_shows_what_is_there_and_what_becomes_of_it(filled: RunningProxy, tmp_path: Path) -> None:
    async def visit(tab: Tab) -> None:
        await becomes(tab, f"['7', '5'].includes({READY}.cells[1].firstChild.textContent)")
        assert await tab.evaluate("document.querySelector('.stuck').textContent.includes('the queue is paused')")
        assert await tab.evaluate("document.querySelector('tbody').textContent.includes('shop.mails<b>&')")
        await tab.evaluate(f"{READY}.querySelector('a').focus()")
        with filled.connect(database="shop") as client:
            enqueue(client, "orders", "xyz" * 10)
        await becomes(tab, f"Number({READY}.cells[1].firstChild.textContent) >= 30")
        assert await tab.evaluate(f"document.activeElement === {READY}.querySelector('a')")
        await tab.evaluate(
            "document.getElementById('search').value = 'reports';"
            " document.getElementById('search').dispatchEvent(new Event('input'))"
        )
        await becomes(tab, "document.querySelectorAll('tbody tr').length === 1")

    browse(filled, tmp_path, visit)


def test_the_page_survives_a_restart_of_its_proxy(filled: RunningProxy, tmp_path: Path) -> None:
    async def visit() -> None:
        async with opened(tmp_path / "profile") as tab:
            await tab.look(address(filled))
            filled.terminate()
            await becomes(tab, "document.getElementById('state').textContent === 'The proxy does not answer'")
            filled._options = [*filled._options, "--admin", f"127.0.0.1:{filled.admin_port}"]
            filled.start()
            await becomes(tab, "document.getElementById('state').textContent === 'Updated again'")

    asyncio.run(visit())


MANY = 500
ASKED = "performance.getEntriesByType('resource').filter(entry => entry.name.includes('part=content')).length"
NODES = "document.querySelectorAll('*').length"
NODES_MAX = 20
"""Elements of a row: its cells, the link, marks, and the plots."""


@pytest.fixture
def many(private_proxy: RunningProxy) -> RunningProxy:
    """Five hundred queues, of which number n has n % 7 messages."""
    with connect(private_proxy.server) as root:
        run(root, "CREATE DATABASE shop")
    with private_proxy.connect(database="shop") as client:
        run(client, "CREATE QUEUE queue_000 (payload TEXT)")
        for number in range(1, MANY):
            run(client, f"CREATE TABLE queue_{number:03} LIKE queue_000")
            if count := number % 7:
                enqueue(client, f"queue_{number:03}", "x" * count)
    return private_proxy


@pytest.mark.timeout(400)
def test_five_hundred_queues_are_shown_sorted_and_searched_by_one_request_each(
    many: RunningProxy, tmp_path: Path
) -> None:
    # A count that is older than a minute has its age behind it.
    counts = "[...document.querySelectorAll('tbody tr')].map(row => row.cells[1].firstChild.textContent.trim())"

    async def visit() -> None:
        async with opened(tmp_path / "profile") as tab:
            await tab.look(address(many))
            await becomes(tab, f"document.querySelectorAll('tbody tr').length === {MANY}", wait_s=120)
            # They are counted at a tenth of the time of one connection.
            await becomes(tab, f"!{counts}.includes('–')", wait_s=180)
            assert await tab.evaluate(NODES) < NODES_MAX * MANY
            await tab.look(address(many) + "?sort=ready")
            assert await tab.evaluate(f"{counts}.slice(0, 3)") == ["6", "6", "6"]
            assert await tab.evaluate(f"{counts}.at(-1)") == "0"
            seen = await tab.seen(address(many) + "?sort=ready")
            assert seen.complaints == []

            # Five letters are typed at once: no more than one request each, and the last one counts.
            before = await tab.evaluate(ASKED)
            await tab.evaluate(
                "for (const text of ['q', 'qu', 'e_', 'e_1', 'e_12']) {"
                " const field = document.getElementById('search');"
                " field.value = text; field.dispatchEvent(new Event('input')); }"
            )
            await becomes(tab, "document.querySelectorAll('tbody tr').length === 10")
            # One more is that of the timer.
            assert await tab.evaluate(ASKED) - before <= 6
            assert await tab.evaluate(NODES) < NODES_MAX * 10 + 200
            assert (await tab.evaluate(counts))[:2] == ["6", "5"]

    asyncio.run(visit())


READABLE = {
    "": f"{READY}.cells[1].firstChild.textContent !== '–'",
    "queue?db=shop&name=orders": "document.querySelector('#streams')",
    "messages?db=shop&name=orders_dead&state=dead": "document.querySelector('#messages + div tbody')",
    "message?db=shop&name=orders&id=2": "document.body.textContent.includes('Deliveries')",
    "proxies": "document.querySelector('#proxies')",
    "sign-in": "document.querySelector('input[type=password]')",
}
PATHS = ["queues", "queue", "messages", "message", "proxies", "sign in"]


@pytest.mark.parametrize("path", list(READABLE), ids=PATHS)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390], ids=["desk", "phone"])
def test_axe_finds_nothing_in_any_colours_and_on_a_phone(
    filled: RunningProxy, tmp_path: Path, *, width: int, dark: bool, path: str
) -> None:
    async def visit(tab: Tab) -> None:
        await tab.emulate(width=width, dark=dark)
        await becomes(tab, READABLE[path])
        await inoffensive(tab)

    browse(filled, tmp_path, visit, path)


def test_the_page_of_a_queue_leads_to_its_messages_and_copies_sql(filled: RunningProxy, tmp_path: Path) -> None:
    async def visit(tab: Tab) -> None:
        await tab.evaluate("document.querySelector('button.copy').click()")
        await becomes(tab, "/^(Copied|Selected)$/.test(document.querySelector('button.copy').textContent)")
        await becomes(tab, "/Copied|Selected/.test(document.getElementById('state').textContent)")
        await tab.follow("document.querySelector('.facts a[href*=\"state=dead\"]').click()")
        assert await tab.evaluate("document.querySelector('#messages + div tbody').rows.length") == 2
        with filled.connect(database="shop") as client:
            run(client, "INSERT INTO orders_dead (epoch) VALUES (5)")
        await becomes(tab, "document.querySelector('#messages + div tbody').rows.length === 3")
        assert "/message?db=shop&name=orders_dead&id=" in await tab.evaluate(
            "document.querySelector('#messages + div tbody a').href"
        )

    browse(filled, tmp_path, visit, "queue?db=shop&name=orders_dead")


TYPE = "document.querySelector('[name={name}]').value = '{value}'"
SUBMIT = "document.querySelector('main form[method=post] button').click()"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_who_signs_in_acts_in_two_steps_and_sees_what_the_server_answers(
    filled: RunningProxy, private_server: Any, tmp_path: Path, *, dark: bool
) -> None:
    with connect(private_server) as root:
        run(root, "CREATE USER clerk@'%' IDENTIFIED BY 'Lovage-1742'")
        run(root, "GRANT SELECT, UPDATE ON shop.* TO clerk@'%'")

    async def sign_in(tab: Tab, password: str) -> None:
        for name, value in ("user", "clerk"), ("password", password):
            await tab.evaluate(TYPE.format(name=name, value=value))
        await tab.follow(SUBMIT)

    async def visit(tab: Tab) -> None:
        await tab.emulate(width=390, dark=dark)
        await tab.follow("document.querySelector('.account a').click()")
        await sign_in(tab, "wrong")
        assert "(1045) Access denied" in await tab.evaluate("document.querySelector('[role=alert]').textContent")
        await inoffensive(tab)
        await sign_in(tab, "Lovage-1742")
        assert await tab.evaluate("document.cookie") == ""
        await inoffensive(tab)
        for button, answer in ("Give back", "1 row affected."), ("Delete", "(1142) DELETE command denied"):
            click = (
                f"[...document.querySelectorAll('.actions a')].find(a => a.textContent.startsWith('{button}')).click()"
            )
            await tab.follow(click)
            await inoffensive(tab)
            await tab.follow(SUBMIT)
            assert answer in await tab.evaluate("document.querySelector('main p[role=status]').textContent")
            await inoffensive(tab)
            await tab.follow("document.querySelector('main p > a').click()")
        await tab.follow("location = '/messages?db=shop&name=orders&state=ready'")
        await inoffensive(tab)
        await tab.evaluate("document.querySelector('.all input').click()")
        await tab.follow("document.querySelector('.choosing [value=nack]').click()")
        assert "WHERE id IN (" in await tab.evaluate("document.querySelector('main pre').textContent")
        await tab.follow(SUBMIT)
        await tab.follow("document.querySelector('main p > a').click()")
        assert await tab.evaluate("location.pathname + location.search") == "/messages?db=shop&name=orders&state=ready"

    browse(filled, tmp_path, visit, "message?db=shop&name=orders&id=2")


PICTURED = {
    "page": ("", "document.querySelectorAll('svg polyline').length > 8"),
    "queue": ("queue?db=shop&name=orders", "document.querySelectorAll('.plots polyline').length > 5"),
    "messages": ("messages?db=shop&name=order_mails_dead&state=dead", "document.querySelector('#messages')"),
}


@pytest.mark.skipif("PICTURES" not in os.environ, reason="makes the pictures of docs/, in a folder that PICTURES names")
@pytest.mark.timeout(600)
def test_pictures_of_a_shop_at_work(private_proxy: RunningProxy, private_server: Any, tmp_path: Path) -> None:
    folder = Path(os.environ["PICTURES"])
    with connect(private_server) as root:
        run(root, "CREATE DATABASE shop")
    shop = Shop(private_proxy)
    shop.open()

    async def visit() -> None:
        async with opened(tmp_path / "profile") as tab:
            await tab.look(address(private_proxy))
            # The line is as long as the history.
            await becomes(tab, "/last [3-9]\\d* min/.test(document.querySelector('svg')?.textContent)", wait_s=400)
            for name, (path, shown) in PICTURED.items():
                await taken(tab, address(private_proxy) + path, shown, folder / name)

    with shop.at_work():
        asyncio.run(visit())


async def taken(tab: Tab, place: str, shown: str, file: Path) -> None:
    """Take four pictures of a page, once an expression is true in it."""
    for width, dark in itertools.product((1280, 390), (False, True)):
        await tab.look(place)
        await tab.emulate(width=width, dark=dark)
        await becomes(tab, shown, wait_s=200)
        kind = f"{'phone' if width < 600 else 'desk'}-{'dark' if dark else 'light'}"
        await tab.picture(file.with_name(f"{file.name}-{kind}.png"))


def says(text: str) -> str:
    return f"document.querySelector('main').textContent.includes('{text}')"


@contextlib.contextmanager
def worker(proxy: RunningProxy, queue: str) -> Iterator[None]:
    """A worker that acknowledges what it gets, 20 messages at a time."""
    stop = threading.Event()

    def work() -> None:
        with proxy.connect(database="shop") as client:
            while not stop.wait(0.1):
                if taken := rows(client, f"STREAM id FROM {queue} LIMIT 20 WAIT 1"):
                    run(client, f"ACK {queue} WHERE id IN ({', '.join(str(id_) for (id_,) in taken)})")

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.skipif("STATES" not in os.environ, reason="makes pictures of each state, in a folder that STATES names")
@pytest.mark.timeout(1200)
def test_pictures_of_each_state(private_proxy: RunningProxy, private_server: Any, tmp_path: Path) -> None:
    """No queue, three, dead letters, stuck ones, a flood, three hundred, and a server that is down: to be looked at."""
    folder, place = Path(os.environ["STATES"]), address(private_proxy)

    def look(name: str, shown: str, path: str = "") -> None:
        async def visit() -> None:
            async with opened(tmp_path / "profile") as tab:
                await taken(tab, place + path, shown, folder / name)

        asyncio.run(visit())

    with connect(private_server) as root:
        run(root, "CREATE DATABASE shop")
    look("no-queue", says("There is no queue yet"))
    with private_proxy.connect(database="shop") as client:
        run(client, "CREATE QUEUE orders (payload TEXT) MAX_ATTEMPTS = 5 DEAD_LETTER = orders_dead REASON = reason")
        run(client, "CREATE QUEUE mails (payload TEXT)")
        look("three", f"{says('shop.orders_dead')} && {says('s ago')}")
        reasons = ("550 no such mailbox", "451 greylisted", "the bank does not answer")
        dead = ", ".join(f"({number}, 5, '{reasons[number % 3]}')" for number in range(101, 165))
        run(client, f"INSERT INTO orders_dead (id, epoch, reason) VALUES {dead}")
        look("dead", says("greylisted"), "messages?db=shop&name=orders_dead&state=dead")
        enqueue(client, "mails", "x" * 40)
        run(client, "PAUSE QUEUE orders")
        enqueue(client, "orders", "x")
        look("stuck", f"{says('the queue is paused')} && {says('40 due; no stream has read it')}")
        enqueue(client, "mails", "x" * 30_000)
        with worker(private_proxy, "mails"):
            look("flood", says("acknowledged: done in"))
        for number in range(300):
            run(client, f"CREATE TABLE tenant_{number:03} LIKE mails")
        look("three-hundred", "document.querySelectorAll('tbody tr').length > 300")
    private_server.kill()
    look("down", says("out of reach"))
