"""RabbitMQ with a quorum queue, on one node, drained by the client in C (brokers.c)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.compare.brokers import SOURCE, BrokerQueue
from bench.compare.compiling import compiled
from bench.compare.model import Case, MissingError
from bench.compare.root import ROOT, folder_in_root, server_in_root
from bench.processes import HOST, free_port

USER = "rabbitmq"
PATH = "PATH=/usr/bin:/bin:/usr/sbin:/sbin"
LOCAL = "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}"


@dataclass(frozen=True, slots=True)
class RabbitMQ:
    """The server with its own settings and no plugins. Its name server is a process of this bench, too."""

    name: str = "RabbitMQ quorum queue"
    durability: str = "fsync before a confirm, on one node; acknowledgements have no answer"
    cases: Sequence[Case] = (
        Case("4 × acknowledgements of 100", 4, 100),
        Case("8 × an acknowledgement a message", 8, 1),
    )

    @contextlib.contextmanager
    def running(self, folder: Path) -> Iterator[BrokerQueue]:
        found = sorted(ROOT.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*"))
        if not found:
            raise MissingError("not installed: `scripts/prepare competitors` does it")
        client = compiled(SOURCE, folder)
        program = str(Path("/") / found[-1].relative_to(ROOT) / "sbin/rabbitmq-server")
        names, port = free_port(), free_port()
        with folder_in_root(USER) as place, folder_in_root() as names_place:
            settings = (
                *(PATH, LOCAL, f"HOME={place}", f"ERL_EPMD_PORT={names}", "RABBITMQ_NODENAME=compare@localhost"),
                *(
                    f"RABBITMQ_NODE_PORT={port}",
                    f"RABBITMQ_NODE_IP_ADDRESS={HOST}",
                    f"RABBITMQ_DIST_PORT={free_port()}",
                ),
                *(f"RABBITMQ_MNESIA_BASE={place}/data", f"RABBITMQ_LOG_BASE={place}/logs"),
                *(f"RABBITMQ_ENABLED_PLUGINS_FILE={place}/plugins", f"RABBITMQ_CONFIG_FILE={place}/settings"),
            )
            with (
                server_in_root(names_place, names, ["/usr/bin/epmd", "-port", str(names), "-address", HOST]),
                server_in_root(place, port, ["/usr/bin/env", *settings, program], USER) as pid,
            ):
                yield BrokerQueue("amqp", f"RabbitMQ {found[-1].name.rpartition('-')[2]}", port, pid, client)
