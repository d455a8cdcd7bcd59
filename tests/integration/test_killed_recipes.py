"""The recipes of docs/recipes.md, strict order and batches, with their processes killed in the middle of a message.

Each recipe is what one process sends for one message, in the tables that the page makes. The process is killed before
or in the middle of each of its statements, by SIGKILL or SIGTERM. Then another process does the same, and what
the recipe promises must hold: no message is lost, and nothing else is left of the killed process.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import pytest

from tests.support.killable import Kill, Killed, killable
from tests.support.proxies import RunningProxy
from tests.support.queues import rows, run
from tests.support.sampling import LONG, SEED
from tests.support.servers import client_program
from tests.support.waiting import eventually

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"
SIGNALS = (signal.SIGKILL, signal.SIGTERM)

Send = Callable[..., Any]
"""Sends a statement, with its parameters; returns its rows or its affected rows."""

pytestmark = pytest.mark.either_server


@dataclass(frozen=True)
class Recipe:
    """`section`: of the page, which makes the tables; "": of none. `begin`: what is there before the process begins,
    in round n. `work`: what the process sends for one message; nothing more is to be done where it gets none.
    `promise`: what holds when the work of n rounds is done."""

    section: str
    work: Callable[[Send, int], None]
    promise: Callable[[Send, int], bool]
    begin: Callable[[Send, int], None] = lambda _send, _n: None
    also: tuple[str, ...] = ()
    """More tables: what stands for the world outside."""
    kills: int = 1
    """So many processes are killed at the same place, one after another."""
    keeps: bool = False
    """Whether a message stays with a process that has ended (ON_DISCONNECT = keep)."""


def one(send: Send, statement: str) -> Any:
    """The only value that a SELECT returns."""
    ((value,),) = send(statement)
    return value


def all_done(queue: str) -> Callable[[Send, int], bool]:
    return lambda send, _n: one(send, f"SELECT COUNT(*) FROM {queue} WHERE time_acked IS NULL") == 0


# The recipes.


def enqueue_with_a_change(send: Send, n: int) -> None:
    send("BEGIN")
    send("INSERT INTO customers (email) VALUES (%s)", [f"{n}@example.org"])
    send("INSERT INTO outbox (kind, payload) VALUES ('customer.created', JSON_OBJECT('id', LAST_INSERT_ID()))")
    send("COMMIT")


def each_change_has_its_event(send: Send, n: int) -> bool:
    changes = send("SELECT id FROM customers ORDER BY id")
    events = send("SELECT CAST(JSON_VALUE(payload, '$.id') AS SIGNED) FROM outbox ORDER BY 1")
    assert changes == events
    return len(changes) >= n


def publish(send: Send, _n: int) -> None:
    for number, epoch in send("STREAM id, epoch FROM outbox LIMIT 1 WAIT 2"):
        send("INSERT INTO published (id) VALUES (%s)", [number])  # At a broker, which has no part in a transaction.
        send("ACK outbox WHERE id = %s AND epoch = %s", [number, epoch])


def all_are_published(send: Send, _n: int) -> bool:
    missing = "SELECT COUNT(*) FROM outbox WHERE id NOT IN (SELECT id FROM published)"
    return all_done("outbox")(send, 0) and one(send, missing) == 0


def resize(send: Send, _n: int) -> None:
    for number, epoch in send("STREAM id, epoch FROM jobs LIMIT 2 WAIT 2"):
        send("INSERT INTO resized (id) VALUES (%s)", [number])
        send("ACK jobs WHERE id = %s AND epoch = %s", [number, epoch])


def remind(send: Send, _n: int) -> None:
    for number, epoch in send("STREAM id, epoch FROM reminders LIMIT 1 WAIT 2"):
        send("INSERT INTO reminded (id) VALUES (%s)", [number])
        send("ACK reminders WHERE id = %s AND epoch = %s", [number, epoch])


def only_tomorrow_is_left(send: Send, n: int) -> bool:
    left = send("SELECT note, epoch FROM reminders WHERE time_acked IS NULL")
    return bool(left == [["tomorrow", 0]] * n)


def pay(send: Send, _n: int) -> None:
    for number, epoch in send("STREAM id, epoch FROM payments LIMIT 1 WAIT 2"):
        send("DO SLEEP(0)")
        send("ACK payments WHERE id = %s AND epoch = %s", [number, epoch])


def paid_or_dead(send: Send, n: int) -> bool:
    """A worker that was killed in the middle of the ACK may have paid."""
    dead, paid = (one(send, f"SELECT COUNT(*) FROM {table}") for table in ("payments_dead", "payments"))
    return bool(dead + paid == n and all_done("payments")(send, n))


def fail_twice(send: Send, n: int) -> None:
    send("DELETE FROM payments")
    send("DELETE FROM alarms")
    send("INSERT INTO payments (account) VALUES (%s)", [n])
    for _ in range(2):
        ((number,),) = send("STREAM id FROM payments LIMIT 1 WAIT 20")
        send("NACK payments WHERE id = %s", [number])


def raise_an_alarm(send: Send, _n: int) -> None:
    for number, account in send("STREAM id, account FROM payments_dead LIMIT 1 WAIT 2"):
        send("INSERT INTO alarms (id) VALUES (%s)", [number])
        send("REDRIVE QUEUE payments_dead WHERE account = %s", [account])


def it_is_redriven(send: Send, _n: int) -> bool:
    again = "SELECT COUNT(*) FROM payments WHERE epoch = 0"
    return bool(one(send, again) == 1 and one(send, "SELECT COUNT(DISTINCT id) FROM alarms") == 1)


def answer_a_request(send: Send, _n: int) -> None:
    """The request's connection ends with the process; the message stays."""
    for number, epoch in send("STREAM id, epoch FROM news LIMIT 1 WAIT 2"):
        send("INSERT INTO shown (id, epoch) VALUES (%s, %s)", [number, epoch])
        send("DO 0")


def acknowledged_by_another_request(send: Send, n: int) -> bool:
    """Also if the process was killed before it answered: then the message comes again."""
    if one(send, "SELECT COUNT(*) FROM shown") < n:
        send("UPDATE news SET time_next = 0 WHERE time_acked IS NULL")
        return False
    assert send("STREAM id FROM news NOWAIT") == []
    for number, epoch in send("SELECT id, MAX(epoch) FROM shown GROUP BY id"):
        send("ACK news WHERE id = %s AND epoch = %s", [number, epoch])
    return all_done("news")(send, n)


def transfer(send: Send, _n: int) -> None:
    send("BEGIN")
    for number, amount, epoch in send("STREAM id, amount, epoch FROM transfers LIMIT 1 WAIT 2"):
        send("UPDATE accounts SET balance = balance + %s WHERE id = 1", [amount])
        send("ACK transfers WHERE id = %s AND epoch = %s", [number, epoch])
    send("COMMIT")


def each_transfer_counts_once(send: Send, n: int) -> bool:
    done = one(send, "SELECT COUNT(*) FROM transfers WHERE time_acked IS NOT NULL")
    assert one(send, "SELECT balance FROM accounts") == 100 + 25 * done
    return bool(done == n)


def enqueue_a_batch(send: Send, n: int) -> None:
    if one(send, "SELECT COUNT(*) FROM letters") == 100 * n:  # The killed process has committed it.
        return
    values = ", ".join(["('Main Street')"] * 50)
    send("BEGIN")
    send(f"INSERT INTO letters (address) VALUES {values}")
    send(f"INSERT INTO letters (address) VALUES {values}")
    send("COMMIT")


def whole_batches(send: Send, n: int) -> bool:
    return bool(one(send, "SELECT COUNT(*) FROM letters") == 100 * n)


def deliver_letters(send: Send, _n: int) -> None:
    while letters := send("STREAM id FROM letters LIMIT 60 WAIT 2"):
        assert send("ACK letters WHERE id IN %s", [[number for (number,) in letters]]) == len(letters)
        if one(send, "SELECT COUNT(*) FROM letters WHERE time_acked IS NULL") == 0:
            break


def two_tickets(send: Send, _n: int) -> None:
    send("DELETE FROM answered")
    send("INSERT INTO tickets (priority) VALUES (5), (0)")


def answer_tickets(send: Send, _n: int) -> None:
    send("DO SLEEP(0.2)")  # Order holds among messages that were due a tenth of a second before.
    for _ in range(2):
        for number, epoch, priority in send("STREAM id, epoch, priority FROM tickets LIMIT 1 WAIT 2"):
            send("INSERT INTO answered (priority) VALUES (%s)", [priority])
            send("ACK tickets WHERE id = %s AND epoch = %s", [number, epoch])
        if one(send, "SELECT COUNT(*) FROM tickets WHERE time_acked IS NULL") == 0:
            break


def urgent_tickets_first(send: Send, _n: int) -> bool:
    answered = [priority for (priority,) in send("SELECT priority FROM answered ORDER BY number")]
    assert answered == sorted(answered)
    return all_done("tickets")(send, 0) and set(answered) == {0, 5}


def synchronise(send: Send, _n: int) -> None:
    for number, epoch in send("STREAM id, epoch FROM syncs LIMIT 1 WAIT 2"):
        assert send("INSERT IGNORE INTO syncs (account) VALUES (7)") == 0
        send("ACK syncs WHERE id = %s AND epoch = %s", [number, epoch])


def one_sync_a_round(send: Send, n: int) -> bool:
    assert one(send, "SELECT COUNT(*) FROM syncs") == n
    return all_done("syncs")(send, n)


def report(send: Send, n: int) -> None:
    send("INSERT IGNORE INTO reports (id) VALUES ('2030-01-01' + INTERVAL %s DAY)", [n])
    for day, epoch in send("STREAM id, epoch FROM reports LIMIT 1 WAIT 2"):
        send("INSERT INTO printed (id) VALUES (%s)", [day])
        send("ACK reports WHERE id = %s AND epoch = %s", [day, epoch])


def one_report_a_round(send: Send, n: int) -> bool:
    assert one(send, "SELECT COUNT(*) FROM reports") <= n
    return bool(
        all_done("reports")(send, n)
        and one(send, "SELECT COUNT(*) FROM reports") == n
        and one(send, "SELECT COUNT(DISTINCT id) FROM printed") == n
    )


def poll_and_enqueue_the_next(send: Send, _n: int) -> None:
    for number, epoch, feed in send("STREAM id, epoch, feed FROM polls LIMIT 1 WAIT 2"):
        send("BEGIN")
        send("INSERT INTO polls (feed, delay_s) VALUES (%s, 0)", [feed])
        acknowledged = send("ACK polls WHERE id = %s AND epoch = %s", [number, epoch])
        send("COMMIT" if acknowledged else "ROLLBACK")


def one_poll_is_waiting(send: Send, n: int) -> bool:
    assert one(send, "SELECT COUNT(*) FROM polls WHERE time_acked IS NULL") == 1
    return bool(one(send, "SELECT COUNT(*) FROM polls") >= n + 1)


def first_poll(send: Send, n: int) -> None:
    if n == 1:
        send("INSERT INTO polls (feed) VALUES ('weather')")


class Connection:
    """What the page's function needs of a connection of PyMySQL, by a killable client."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._rows: Any = ()
        send("SET autocommit = 0")

    def cursor(self) -> Connection:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def execute(self, statement: str, arguments: tuple[object, ...] = ()) -> None:
        self._rows = self._send(statement, arguments)

    def fetchall(self) -> Any:
        return self._rows

    def commit(self) -> None:
        self._send("COMMIT")


def greet(send: Send, _n: int) -> None:
    (text,) = re.findall(r"^def work\(connection\):.*?(?=^\S)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(text.replace("NOWAIT", "WAIT 2"), str(PAGE), "exec", dont_inherit=True), names)
    names["work"](Connection(send))


def each_is_greeted_once(send: Send, n: int) -> bool:
    greeted = one(send, "SELECT COUNT(*) FROM greeted")
    assert greeted == one(send, "SELECT COUNT(*) FROM greetings WHERE time_acked IS NOT NULL")
    return bool(greeted == n)


def two_events(send: Send, _n: int) -> None:
    send("DELETE FROM handled")
    send("INSERT INTO events (customer) VALUES (7), (7)")


def handle_events(send: Send, _n: int) -> None:
    for _ in range(2):
        for number, epoch in send("STREAM id, epoch FROM events LIMIT 1 WAIT 2"):
            send("INSERT INTO handled (message) VALUES (%s)", [number])
            send("ACK events WHERE id = %s AND epoch = %s", [number, epoch])
        if all_done("events")(send, 0):
            break


def in_strict_order(send: Send, _n: int) -> bool:
    handled = [number for (number,) in send("SELECT message FROM handled ORDER BY number")]
    assert handled == sorted(handled)
    return all_done("events")(send, 0) and len(set(handled)) == 2


def a_part_and_a_follow_up(send: Send, n: int) -> None:
    send("DELETE FROM handled")
    send("INSERT INTO parts (body, batch, after_batch) VALUES ('last', NULL, %s), ('part', %s, NULL)", [n, n])


def handle_parts(send: Send, _n: int) -> None:
    for _ in range(2):
        for number, epoch, body in send("STREAM id, epoch, body FROM parts LIMIT 1 WAIT 2"):
            send("INSERT INTO handled (message) VALUES (%s)", [body])
            send("ACK parts WHERE id = %s AND epoch = %s", [number, epoch])
        if all_done("parts")(send, 0):
            break


def the_last_came_last(send: Send, _n: int) -> bool:
    handled = [body for (body,) in send("SELECT message FROM handled ORDER BY number")]
    assert handled == sorted(handled, key=["part", "last"].index)
    return all_done("parts")(send, 0) and "last" in handled


def insert(statement: str) -> Callable[[Send, int], None]:
    return lambda send, _n: send(statement)


RECIPES = {
    "an outbox's producer": Recipe("Transactional outbox", enqueue_with_a_change, each_change_has_its_event),
    "an outbox's publisher": Recipe(
        "Transactional outbox",
        publish,
        all_are_published,
        begin=insert("INSERT INTO outbox (kind) VALUES ('customer.created')"),
        also=("CREATE TABLE published (id BIGINT)",),
    ),
    "a worker with retries": Recipe(
        "Work queue with retries",
        resize,
        all_done("jobs"),
        begin=insert("INSERT INTO jobs (task) VALUES ('1.png'), ('2.png')"),
        also=("CREATE TABLE resized (id BIGINT)",),
    ),
    "a worker of delayed jobs": Recipe(
        "Delayed jobs",
        remind,
        only_tomorrow_is_left,
        begin=insert("INSERT INTO reminders (note, delay_s) VALUES ('now', 0), ('tomorrow', 86400)"),
        also=("CREATE TABLE reminded (id BIGINT)",),
    ),
    "a message that kills its workers": Recipe(
        "Dead letters and redrive",
        pay,
        paid_or_dead,
        begin=insert("INSERT INTO payments (account) VALUES (7)"),
        kills=2,
    ),
    "an alarm about dead letters": Recipe(
        "Dead letters and redrive",
        raise_an_alarm,
        it_is_redriven,
        begin=fail_twice,
        also=("CREATE TABLE alarms (id BIGINT)",),
    ),
    "a web request": Recipe(
        "Long poll from a web request",
        answer_a_request,
        acknowledged_by_another_request,
        begin=insert("INSERT INTO news (headline) VALUES ('rain')"),
        also=("CREATE TABLE shown (id BIGINT, epoch BIGINT)",),
        keeps=True,
    ),
    "exactly-once effects": Recipe(
        "Exactly-once effects",
        transfer,
        each_transfer_counts_once,
        begin=insert("INSERT INTO transfers (account, amount) VALUES (1, 25)"),
        also=("INSERT INTO accounts VALUES (1, 100)",),
    ),
    "a batch's producer": Recipe("A batch of 10,000, all or nothing", enqueue_a_batch, whole_batches),
    "a batch's consumer": Recipe(
        "A batch of 10,000, all or nothing", deliver_letters, all_done("letters"), begin=enqueue_a_batch
    ),
    "priorities": Recipe(
        "Priorities",
        answer_tickets,
        urgent_tickets_first,
        begin=two_tickets,
        also=("CREATE TABLE answered (number INT AUTO_INCREMENT PRIMARY KEY, priority INT)",),
    ),
    "unique jobs": Recipe(
        "Unique jobs", synchronise, one_sync_a_round, begin=insert("INSERT IGNORE INTO syncs (account) VALUES (7)")
    ),
    "recurring jobs by cron": Recipe(
        "Recurring jobs", report, one_report_a_round, also=("CREATE TABLE printed (id DATE)",)
    ),
    "a job that enqueues the next": Recipe(
        "Recurring jobs", poll_and_enqueue_the_next, one_poll_is_waiting, begin=first_poll
    ),
    "strict order": Recipe(
        "",
        handle_events,
        in_strict_order,
        begin=two_events,
        also=(
            "CREATE QUEUE events (customer BIGINT NOT NULL) GROUP_BY = (customer), GROUP_ORDER = STRICT",
            "CREATE TABLE handled (number INT AUTO_INCREMENT PRIMARY KEY, message INT)",
        ),
    ),
    "a batch and its follow-up": Recipe(
        "",
        handle_parts,
        the_last_came_last,
        begin=a_part_and_a_follow_up,
        also=(
            "CREATE QUEUE parts (body VARCHAR(40)) BATCHES",
            "CREATE TABLE handled (number INT AUTO_INCREMENT PRIMARY KEY, message VARCHAR(40))",
        ),
    ),
    "the worker that is tested": Recipe(
        "Testing a worker", greet, each_is_greeted_once, begin=insert("INSERT INTO greetings (name) VALUES ('Ann')")
    ),
}
IN_BASH = "A worker in bash"


# The page.


def sections() -> dict[str, str]:
    """The text of each section, by its title."""
    _, *parts = re.split(r"^## (.*)$", PAGE.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def tables(section: str) -> list[str]:
    """The statements by which a section makes its tables, in its sessions or programs."""
    made = re.compile(r"^> (CREATE (?:QUEUE|TABLE) .*);$|\"(CREATE (?:QUEUE|TABLE) [^\";]*)[\";]", re.MULTILINE)
    return [match[1] or match[2] for match in made.finditer(section)]


def make_tables(send: Send, recipe: Recipe) -> None:
    """Its waits are longer than the test, so a message that comes again was given back."""
    made = tables(sections()[recipe.section]) if recipe.section else []
    for statement in made:
        send(statement)
        if queue := re.match(r"CREATE QUEUE (\w+)", statement):
            send(f"ALTER QUEUE {queue[1]} ACK_WAIT = 30 MAX_BACKOFF = 60")
    for statement in recipe.also:
        send(statement)


# The play.


def sender(connection: Any) -> Send:
    """Sends through this process; rows are lists, as those of a killable client."""

    def send(statement: str, arguments: Sequence[object] = ()) -> Any:
        with connection.cursor() as cursor:
            affected = cursor.execute(statement, arguments or None)
            return affected if cursor.description is None else [list(row) for row in cursor.fetchall()]

    return send


def kills(statements: int) -> Iterator[Kill]:
    """One kill at each place, drawn by the seed: which signal, and before the statement or in the middle of it.
    `make test-long` plays all four."""
    for after in range(statements):
        ways = [(by, sent) for by in SIGNALS for sent in (True, False)]
        for by, sent in ways if LONG else [ways[(after + SEED) % len(ways)]]:
            yield Kill(after, by, sent or not after)


def patient(send: Send) -> Send:
    """The process that is to be killed gets its message, however busy the machine is."""
    return lambda statement, arguments=(): send(statement.replace(" WAIT 2", " WAIT 20"), arguments)


@dataclass
class Play:
    recipe: Recipe
    proxy: RunningProxy
    database: str
    watcher: Send
    rounds: int = 0

    def begin(self) -> None:
        self.rounds += 1
        self.recipe.begin(self.watcher, self.rounds)

    def work(self, kill: Kill | None) -> int:
        """Let a process work, and be killed; returns how many statements were answered."""
        with killable(self.proxy.port, self.database, kill) as client, contextlib.suppress(Killed):
            self.recipe.work(patient(client), self.rounds)
        ended = f"SELECT COUNT(*) FROM information_schema.processlist WHERE id = {client.connection_id}"
        eventually(lambda: one(self.watcher, ended) == 0)
        if not self.recipe.keeps:
            eventually(lambda: not self.watcher("SHOW DELIVERIES"))
        return client.answered

    def kept(self) -> bool:
        """Whether the promise holds now; if not, another process works."""
        if self.recipe.promise(self.watcher, self.rounds):
            return True
        with self.proxy.connect(database=self.database) as connection:
            self.recipe.work(sender(connection), self.rounds)
        return self.recipe.promise(self.watcher, self.rounds)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_what_a_recipe_promises_holds_when_its_processes_are_killed(
    proxy: RunningProxy, database: str, recipe: Recipe
) -> None:
    with proxy.connect(database=database) as connection:
        play = Play(recipe, proxy, database, sender(connection))
        make_tables(play.watcher, recipe)
        play.begin()
        statements = play.work(None)
        eventually(play.kept, timeout_s=20, what="without a kill")
        for kill in kills(statements):
            play.begin()
            for number in range(recipe.kills):
                if number and recipe.promise(play.watcher, play.rounds):
                    break  # The statement that was sent has done it.
                assert play.work(kill) == kill.after
            eventually(play.kept, timeout_s=20, what=str(kill))


def test_a_recipe_that_loses_a_message_is_found(proxy: RunningProxy, database: str) -> None:
    def publish_too_late(send: Send, _n: int) -> None:
        for number, epoch in send("STREAM id, epoch FROM outbox LIMIT 1 WAIT 2"):
            send("ACK outbox WHERE id = %s AND epoch = %s", [number, epoch])
            send("INSERT INTO published (id) VALUES (%s)", [number])

    with proxy.connect(database=database) as connection:
        play = Play(
            replace(RECIPES["an outbox's publisher"], work=publish_too_late), proxy, database, sender(connection)
        )
        make_tables(play.watcher, play.recipe)
        play.begin()
        play.work(Kill(2, signal.SIGKILL, sent=False))
        assert not play.kept()


@pytest.mark.parametrize("number", SIGNALS)
def test_the_worker_in_bash_that_is_killed_loses_no_message(
    proxy: RunningProxy, database: str, server_name, number: signal.Signals
) -> None:
    (text,) = re.findall(r"^```bash\n(.*?)^```$", sections()[IN_BASH], re.MULTILINE | re.DOTALL)
    text = text.replace("3307", str(proxy.port)).replace("root shop", f"root {database}")
    text = text.replace('"mysql -h', f'"{shlex.join(client_program(server_name))} -h')
    first = text.replace('converting $1";', 'converting $1"; sleep 50;')
    worker = subprocess.Popen(["bash", "-c", first], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert worker.stdout is not None
    assert worker.stdout.readline() == "converting cat.png\n"
    with proxy.connect(database=database) as connection:
        assert rows(connection, "STREAM id FROM images NOWAIT") == []
        os.killpg(worker.pid, number)
        worker.communicate()
        run(connection, "UPDATE images SET time_next = 0")  # As if its wait were over.
        again = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("$mysql -e"))
        done = subprocess.run(["bash", "-c", again], capture_output=True, text=True, timeout=40, check=False)
        assert (done.stdout, done.stderr) == ("converting cat.png\nconverting dog.png\n0\n", "")
        assert rows(connection, "SELECT epoch FROM images") == [(2,), (2,)]


def test_each_section_of_the_page_is_played() -> None:
    assert {recipe.section for recipe in RECIPES.values() if recipe.section} | {IN_BASH} == sections().keys()
