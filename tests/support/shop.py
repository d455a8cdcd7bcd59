"""A shop at work: its queues, and those who fill and read them through the proxy, for the pages and their pictures."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pymysql.connections import Connection

from tests.support.proxies import RunningProxy
from tests.support.queues import rows, run

QUEUES = (
    "orders (customer VARCHAR(40), amount DECIMAL(10,2)) MAX_ATTEMPTS = 5 DEAD_LETTER = orders_dead REASON = reason",
    "order_mails (recipient VARCHAR(80)) MAX_ATTEMPTS = 8 DEAD_LETTER = order_mails_dead REASON = reason",
    "payments (provider VARCHAR(20), order_no BIGINT) GROUP_BY = provider GROUP_LIMIT = 2 ACK_WAIT = 600",
    "invoices (order_no BIGINT) ACK_WAIT = 600",
    "thumbnails (picture VARCHAR(80)) MAX_IN_FLIGHT = 4",
    "stock_updates (warehouse VARCHAR(20), sku VARCHAR(20)) GROUP_BY = warehouse",
    "search_index (product BIGINT)",
    "newsletter (recipient VARCHAR(80)) MAX_RATE = 50",
    "reports (month VARCHAR(7))",
    "webhooks (url VARCHAR(200)) REASON = reason",
)
CUSTOMERS = ("Ada Marsh", "Ben Okafor", "Chiara Neri", "Dora Lund", "Emil Novak", "Femke Bos", "Gita Rao", "Hugo Vidal")


@dataclass(frozen=True)
class Flow:
    """How a queue is filled and read."""

    queue: str
    columns: str
    values: str
    put: float
    """Messages a second, on average."""
    taken: int
    """Messages that its worker takes at a time; 0: nobody reads it."""
    beat_s: float = 40.0
    """The traffic swells and ebbs in this time."""


FLOWS = (
    Flow("orders", "(customer, amount)", "('{customer}', {number}.90)", 6, 20),
    Flow("order_mails", "(recipient)", "('{number}@mail.example')", 6, 20, 30),
    Flow("payments", "(provider, order_no)", "('{provider}', {number})", 3, 10, 25),
    Flow("invoices", "(order_no)", "({number})", 2, 10, 60),
    Flow("thumbnails", "(picture)", "('pictures/{number}.jpg')", 5, 1, 50),
    Flow("stock_updates", "(warehouse, sku)", "('{warehouse}', 'SKU-{number}')", 4, 20, 35),
    Flow("search_index", "(product)", "({number})", 3, 10),
    Flow("webhooks", "(url)", "('https://partner.example/hooks/{number}')", 1, 0),
)


@dataclass
class Shop:
    """The shop's database in a proxy."""

    proxy: RunningProxy
    database: str = "shop"
    threads: list[threading.Thread] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    def connect(self, program: str) -> Connection[Any]:
        """A program of the shop."""
        connection: Connection[Any] = self.proxy.connect(database=self.database, program_name=program)
        return connection

    def open(self) -> None:
        """Make the queues, with what happens to be in them."""
        with self.connect("migrations") as client:
            for queue in QUEUES:
                run(client, f"CREATE QUEUE {queue}")
            run(client, "INSERT INTO reports (month) VALUES ('2026-09'), ('2026-10'), ('2026-11')")
            run(client, "PAUSE QUEUE reports")
            later = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000 + 86400000000000"
            several = ", ".join(f"('{number}@mail.example', {later})" for number in range(240))
            run(client, f"INSERT INTO newsletter (recipient, time_next) VALUES {several}")
            dead = ", ".join(f"({number}, '{CUSTOMERS[number % 8]}', 5, 'card expired')" for number in range(101, 104))
            run(client, f"INSERT INTO orders_dead (id, customer, epoch, reason) VALUES {dead}")
            reasons = ("550 no such mailbox", "550 no such mailbox", "451 greylisted", "550 no such mailbox")
            mails = ", ".join(f"({at}, '{at}@mial.example', 8, '{reason}')" for at, reason in enumerate(reasons, 2041))
            run(client, f"INSERT INTO order_mails_dead (id, recipient, epoch, reason) VALUES {mails}")

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """As long as the context, messages come and go."""
        for flow in FLOWS:
            self._start(self._produce, flow)
            if flow.taken:
                self._start(self._consume, flow)
        try:
            yield
        finally:
            self.stopping.set()
            for thread in self.threads:
                thread.join()

    def _start(self, work: Callable[[Flow], None], flow: Flow) -> None:
        thread = threading.Thread(target=work, args=(flow,))
        thread.start()
        self.threads.append(thread)

    def _produce(self, flow: Flow) -> None:
        number = 1000
        with self.connect("shop web") as client:
            beat = 0.0
            while not self.stopping.wait(0.5):
                beat += 0.5
                swell = 1 + math.sin(beat * 2 * math.pi / flow.beat_s)
                fresh = round(flow.put * swell / 2 + (number * 7 % 10) / 10)
                if fresh:
                    values = ", ".join(self._values(flow, number + at) for at in range(fresh))
                    run(client, f"INSERT INTO {flow.queue} {flow.columns} VALUES {values}")
                number += fresh

    @staticmethod
    def _values(flow: Flow, number: int) -> str:
        return flow.values.format(
            number=number,
            customer=CUSTOMERS[number % 8],
            provider=("cards", "bank", "wallet")[number % 3],
            warehouse=("north", "south")[number % 2],
        )

    def _consume(self, flow: Flow) -> None:
        with self.connect(f"shop {flow.queue.replace('_', ' ')} worker") as client:
            while not self.stopping.wait(0.25):
                taken = rows(client, f"STREAM id FROM {flow.queue} LIMIT {flow.taken} WAIT 1")
                if taken and not self.stopping.wait(0.1):
                    run(client, f"ACK {flow.queue} WHERE id IN ({', '.join(str(id_) for (id_,) in taken)})")
