"""All that is compared, in the order of the tables."""

from __future__ import annotations

from collections.abc import Sequence

from bench.compare.brokers import BROKERS
from bench.compare.model import Competitor
from bench.compare.mysql import Ackstream, ByHand, Floor
from bench.compare.postgres import POSTGRES_QUEUES
from bench.compare.rabbitmq import RabbitMQ

COMPETITORS: Sequence[Competitor] = (
    Ackstream("mysql"),
    Ackstream("mariadb"),
    ByHand("mysql"),
    ByHand("mariadb"),
    Floor("mysql"),
    Floor("mariadb"),
    *POSTGRES_QUEUES,
    *BROKERS,
    RabbitMQ(),
)
