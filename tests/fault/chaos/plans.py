"""The queues of a run: how each is made, who works on it, and what the checker may expect of it.

Here is the place for queues with other options: add a plan to `PLANS`, and to the checker what the
option promises.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

TOKENS_OF_A_PROCESS = 1 << 36
"""Each process of the workload numbers its messages from a multiple of it."""

COLUMNS = "token BIGINT NOT NULL, kind INT NOT NULL DEFAULT 0, body VARCHAR(200), KEY by_token (token)"
VITESS = (
    "CREATE TABLE {name} (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, priority INT NOT NULL DEFAULT 0,"
    " epoch BIGINT NOT NULL DEFAULT 0, time_next BIGINT DEFAULT 0, time_acked BIGINT DEFAULT NULL, "
    + COLUMNS
    + ", KEY next_idx (time_acked, priority, time_next DESC)) ENGINE=InnoDB COMMENT 'vitess_message,vt_ack_wait=4,"
    "vt_purge_after=86400,vt_batch_size=100,vt_cache_size=5000,vt_poller_interval=3,vt_max_backoff=8'"
)


CAPACITIES = {"mail": (5, 2), "license": (3, 1)}
"""The semaphores of a run: the capacity at first, and another that ALTER SEMAPHORE may set."""


class Limit(NamedTuple):
    """What no more than `most` messages may hold at a time. `queue` is empty where several queues share it."""

    rule: str
    queue: str
    name: str
    most: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A queue. `share`: how much of the work it gets; the other figures are numbers of actors in each process."""

    name: str
    create: str
    ack_wait_s: float
    max_wait_s: float
    share: float = 1.0
    streams: int = 1
    pollers: int = 0
    lockers: int = 0
    prefetch: int = 0
    ids: str = ""
    """What ids are made of: "names" (text), "hashes" (binary), or integers by AUTO_INCREMENT."""
    prepares: bool = False
    """Its clients prepare their statements."""
    kinds: int = 1
    """With more than one, each consumer has a condition on `kind`."""
    priorities: int = 1
    delays: bool = False
    plain_sql: bool = False
    """Rescheduled, acknowledged and deleted by plain SQL as well."""
    ddl: tuple[str, ...] = ()
    max_in_flight: int = 0
    max_attempts: int = 0
    dead_letter: str = ""
    keep: bool = False
    """on_disconnect=keep: the end of a connection frees nothing."""
    quota_per_s: int = 0
    """No more messages than this a second are produced in each process (0: the share decides)."""
    producers: int = 1
    batch: int = 0
    """The most rows of an INSERT (0: as for the other queues)."""
    ordered: bool = False
    """It has one consumer, so its messages come in the order of their insertion."""
    audited: bool = False
    """Its triggers fail while `table_full` lasts."""
    singles: bool = False
    """Its pollers take one message at a time: their ACKs may be gathered."""
    careful: bool = False
    """Its consumers acknowledge all that they get."""
    groups: int = 0
    """Its messages are of so many groups: the column `kind`, by the remainder of the token."""
    group_limit: int = 0
    rate: int = 0
    """Deliveries a second: of each group, or of a queue without groups."""
    strict: bool = False
    """Its groups are in strict order: one message at a time, or a run of `group_limit` at one stream."""
    needs: tuple[str, ...] = ()
    """What its messages need of semaphores: the column `needs`, by the remainder of the token."""
    resized: bool = False
    """The capacities of the semaphores are changed meanwhile."""
    batches: bool = False
    """The last message of each INSERT follows its other messages."""
    follow_ups: str = ""
    """The queue of the messages that follow; empty: this one."""
    refused: int = 0
    """So many rows at its front cannot be claimed: their epoch is as great as it can be. Nothing waits for them. In a
    long run."""
    kept: int = 0
    """So many old acknowledged rows cannot be purged, because a foreign key refers to them. Others are. In a long
    run."""
    redriven: bool = False
    """Dead messages come back, as new ones, and meanwhile keep what follows them waiting."""

    def as_values(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Plan:
        return cls(**{**values, "ddl": tuple(values["ddl"]), "needs": tuple(values["needs"])})

    def needs_of(self, token: int) -> str:
        return self.needs[token % len(self.needs)] if self.needs else ""

    def id_of(self, token: int) -> str:
        """The id that a message is inserted with, as it is written in SQL."""
        return f"'Ärger {token}'" if self.ids == "names" else f"0x{hashlib.md5(b'%d' % token).hexdigest()}"

    def written(self, identity: bytes) -> str:
        """An id that was received, as it is written in SQL; of a name, another spelling of it."""
        if self.ids == "names":
            return f"'{identity.decode().upper()}'"
        return f"0x{identity.hex()}" if self.ids else identity.decode()

    def limits(self, token: int) -> Iterator[Limit]:
        """The limits that this message counts for while it is in flight."""
        if self.max_in_flight:
            yield Limit("max_in_flight", self.name, "", self.max_in_flight)
        if self.group_limit or self.strict:
            yield Limit("group_limit", self.name, str(token % self.groups), self.group_limit or 1)
        for name in filter(None, self.needs_of(token).split(",")):
            yield Limit("semaphore", "", name, max(CAPACITIES[name]))


def made(name: str, *options: str, columns: str = COLUMNS) -> str:
    return f"CREATE QUEUE {name} ({columns}) " + " ".join(("POLLER_INTERVAL = 3", *options))


def plans(names: frozenset[str] = frozenset()) -> tuple[Plan, ...]:
    """The queues of these names, or all."""
    return tuple(plan for plan in PLANS if not names or plan.name in names)


SHORT = ("ACK_WAIT = 5", "MAX_BACKOFF = 8")
GROUPED = (*SHORT, "GROUP_BY = (kind)")
NEEDING = "needs VARCHAR(64), " + COLUMNS
NAMED = "id VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL PRIMARY KEY, " + COLUMNS
HASHED = "id BINARY(16) NOT NULL PRIMARY KEY, " + COLUMNS

PLANS = (
    Plan(
        "bulk", made("bulk", *SHORT, "BATCH_SIZE = 500"), 5, 8, share=60, streams=4, producers=4, batch=1000,
        careful=True,
    ),
    Plan("plain", made("plain", *SHORT), 5, 8, share=2, streams=2, pollers=1, prefetch=500, refused=5, kept=5),
    Plan("vitess", VITESS.format(name="vitess"), 4, 8, share=1, streams=1, lockers=1, pollers=1, plain_sql=True),
    Plan(
        "limited", made("limited", *SHORT, "MAX_IN_FLIGHT = 40"), 5, 8, share=0.3, streams=2, pollers=1,
        max_in_flight=40, refused=3,
    ),
    Plan(
        "failing", made("failing", "ACK_WAIT = 2", "MAX_BACKOFF = 4", "MAX_ATTEMPTS = 3", "DEAD_LETTER = failing_dead"),
        2, 4, share=0.3, streams=1, lockers=1, pollers=1, max_attempts=3, dead_letter="failing_dead",
    ),
    Plan("urgent", made("urgent", *SHORT), 5, 8, share=0.5, streams=4, lockers=1, kinds=4, priorities=3, delays=True),
    Plan("locked", made("locked", *SHORT), 5, 8, share=0.5, streams=1, lockers=3),
    Plan(
        "named", made("named", *SHORT, columns=NAMED), 5, 8, quota_per_s=15, streams=1, pollers=1, lockers=1,
        ids="names", plain_sql=True,
    ),
    Plan(
        "hashed", made("hashed", *SHORT, columns=HASHED), 5, 8, quota_per_s=15, streams=1, pollers=1, lockers=1,
        ids="hashes", prepares=True,
    ),
    Plan(
        "kept", made("kept", *SHORT, "ON_DISCONNECT = keep"), 5, 8, share=0.3, streams=1, lockers=1, pollers=1,
        keep=True,
    ),
    Plan(
        "altered", made("altered", *SHORT), 5, 8, share=0.3, streams=1, lockers=1, pollers=1, quota_per_s=60,
        ddl=("alter", "comment", "truncate", "recreate", "pause"),
    ),
    Plan("ordered", made("ordered", *SHORT), 5, 8, share=0.3, streams=0, pollers=1, quota_per_s=30, ordered=True),
    Plan("singles", made("singles", *SHORT), 5, 8, quota_per_s=25, streams=0, pollers=6, singles=True, refused=3),
    Plan(
        "audited", VITESS.format(name="audited"), 4, 8, share=0.2, streams=1, pollers=1, quota_per_s=20,
        audited=True,
    ),
    Plan(
        "rescheduled", made("rescheduled", *SHORT), 5, 8, share=0.3, streams=1, lockers=1, delays=True,
        plain_sql=True,
    ),
    Plan(
        "grouped", made("grouped", *GROUPED, "GROUP_LIMIT = 3"), 5, 8, quota_per_s=10, streams=1, pollers=1,
        groups=8, group_limit=3, refused=2,
    ),
    Plan(
        "strict", made("strict", *GROUPED, "GROUP_ORDER = STRICT"), 5, 8, quota_per_s=10, streams=1, pollers=1,
        groups=20, strict=True, delays=True, plain_sql=True,
    ),
    Plan(
        "runs", made("runs", *GROUPED, "GROUP_ORDER = STRICT", "GROUP_LIMIT = 3"), 5, 8, quota_per_s=10, streams=1,
        pollers=1, groups=10, strict=True, group_limit=3, delays=True, plain_sql=True,
    ),
    Plan(
        "paced", made("paced", *GROUPED, "GROUP_RATE = 8"), 5, 8, quota_per_s=12, streams=1, pollers=1, groups=2,
        rate=8,
    ),
    Plan("rated", made("rated", *SHORT, "MAX_RATE = 20"), 5, 8, quota_per_s=12, streams=1, pollers=1, rate=20),
    Plan(
        "fair", made("fair", *GROUPED, "MAX_ATTEMPTS = 4", "DEAD_LETTER = fair_dead"), 5, 8, quota_per_s=20, streams=1,
        pollers=1, lockers=2, groups=6, priorities=2, delays=True, max_attempts=4, dead_letter="fair_dead",
    ),
    Plan(
        "partitioned", made("partitioned", "RETENTION BY PARTITION", *SHORT), 5, 8, quota_per_s=20, streams=1,
        pollers=1, lockers=1, plain_sql=True,
    ),
    Plan(
        "mailing", made("mailing", *SHORT, "SEMAPHORES = (needs)", columns=NEEDING), 5, 8, quota_per_s=4, streams=1,
        needs=("mail", "mail,license", "", "license"), resized=True,
    ),
    Plan(
        "printing", made("printing", *GROUPED, "SEMAPHORES = (needs)", columns=NEEDING), 5, 8, quota_per_s=4, streams=1,
        needs=("license,mail", "mail", "license"), groups=5,
    ),
    Plan(
        "batched", made("batched", *SHORT, "BATCHES"), 5, 8, quota_per_s=15, streams=1, pollers=1, plain_sql=True,
        batches=True,
    ),
    Plan(
        "parts", made("parts", *SHORT, "BATCHES"), 5, 8, quota_per_s=15, streams=1, pollers=1, batches=True,
        follow_ups="wholes",
    ),
    Plan(
        "held", made("held", "ACK_WAIT = 2", "MAX_BACKOFF = 4", "MAX_ATTEMPTS = 2", "DEAD_LETTER = held_dead",
        "BATCHES", "BATCH_ON_DEAD = HOLD"), 2, 4, quota_per_s=10, streams=1, pollers=1, max_attempts=2,
        dead_letter="held_dead", batches=True, redriven=True,
    ),
    Plan("wholes", made("wholes", *SHORT, "BATCHES"), 5, 8, streams=1, producers=0, batches=True),
)  # fmt: skip
