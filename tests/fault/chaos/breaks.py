"""Bugs that are put into a proxy on purpose, each with a short run that shows it.

A break edits the source text of modules while a proxy starts (`injected/sitecustomize.py`); nothing
of it is in the product. The checker must object with one of the expected rules. A change of the
product that removes an edited text fails a test: then the break is written anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

INJECTED = Path(__file__).with_name("injected")

DUE = "(time_next IS NULL OR time_next <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000)"
ENGINE_SQL = 'text = resources.files(__package__).joinpath("queries.sql").read_text("utf-8")'
MYSQL = "engine.store.mysql"


@dataclass(frozen=True, slots=True)
class Break:
    """`rules`: those of the checker that find it. `edits`: module, old text, new text."""

    name: str
    rules: frozenset[str]
    queues: frozenset[str]
    edits: Sequence[tuple[str, str, str]]
    proxies: int = 2
    faults: frozenset[str] = frozenset()
    per_minute: float = 20.0
    seconds: float = 15.0
    misbehave: float = 0.3
    settings: Sequence[tuple[str, str]] = ()
    replica: bool = False
    """With a replica, which takes over while the proxies do not reach the primary. Both accept writes then."""

    @property
    def variables(self) -> Mapping[str, str]:
        """The environment of the broken proxies."""
        return {"PYTHONPATH": str(INJECTED), "CHAOS_BREAK": json.dumps(list(self.edits)), **dict(self.settings)}


def in_sql(*changes: tuple[str, str]) -> tuple[str, str, str]:
    """An edit of the engine's SQL."""
    code = "".join(
        f"\n    assert {old!r} in text, 'nothing to break'\n    text = text.replace({old!r}, {new!r})"
        for old, new in changes
    )
    return "engine.store.queries", ENGINE_SQL, ENGINE_SQL + code


def _break(name: str, rules: str, queues: str, *edits: tuple[str, str, str], **more: object) -> Break:
    return Break(name, frozenset(rules.split("|")), frozenset(queues.split()), edits, **more)  # type: ignore[arg-type]


CLAIM_LOCK = f"WHERE id IN ($ids) AND time_acked IS NULL\n    AND {DUE}\n    AND ($condition)\nORDER BY id\nFOR UPDATE"

PURGE = "UTC_TIMESTAMP(6)) * 1000 - $age_ns\nORDER BY time_acked"

BREAKS = (
    _break(
        "a claim is sent and not committed",
        "one claim, two deliveries|stuck",
        "plain",
        (
            "engine.store.claiming",
            '*self._limits.writes(), statement("commit")]',
            "*self._limits.writes()]",
        ),
        ("engine.store.claiming", '            statement("commit"),\n        ]', "        ]"),
        ("engine.store.claiming", "_, now, _, locked, update, _ = results", "_, now, _, locked, update = results"),
    ),
    _break(
        "the guard of a claim has neither epoch nor time",
        "two holders",
        "plain",
        in_sql(
            (CLAIM_LOCK, CLAIM_LOCK.replace(f"    AND {DUE}\n", "")),
            (f"\n    AND {DUE}\nFOR UPDATE NOWAIT", "\nFOR UPDATE NOWAIT"),
            (f" AND COALESCE(epoch, 0) = $epoch\n    AND {DUE}", ""),
        ),
        ("engine.store.claim_plan", " and want.epoch == entry.epoch", ""),
    ),
    _break(
        "a release frees the claim of another proxy",
        "two holders",
        "plain",
        (
            MYSQL,
            "(entry := found.get(claim.key)) and (entry.epoch, entry.due_ns) == (claim.epoch, claim.deadline_ns)",
            "(entry := found.get(claim.key))",
        ),
        misbehave=0.9,
        settings=(("ACKSTREAM_BINLOG", "off"),),
    ),
    _break(
        "an ACK is answered and not committed",
        "ACK lost|acknowledged twice|sum of ACKs",
        "singles",
        (
            "engine.store.acknowledging",
            'fences=self._fences()),\n            statement("commit")',
            'fences=self._fences()),\n            statement("rollback")',
        ),
        proxies=1,
    ),
    _break(
        "messages of a living proxy count as abandoned",
        "two holders",
        "plain bulk",
        (
            MYSQL,
            'gone = f"{of_row} > 0 AND IS_USED_LOCK(CONCAT({text_literal(SLOT_LOCK)}, {of_row})) IS NULL"',
            'gone = f"{of_row} > 0"',
        ),
        faults=frozenset({"kill_proxy"}),
        misbehave=0.9,
        seconds=20,
    ),
    _break(
        "max_in_flight is counted by each proxy alone",
        "max_in_flight",
        "limited",
        ("engine.store.limits.claim", '"max_in_flight": InFlightLimit,', ""),
        misbehave=0.9,
    ),
    _break(
        "group_limit is counted by each proxy alone",
        "group_limit",
        "grouped",
        ("engine.store.limits.claim", '"group_limit": GroupLimit,', ""),
        misbehave=0.9,
    ),
    _break(
        "a claim in strict order ignores messages that are not due",
        "strict order",
        "strict",
        (
            "engine.store.limits.group_order",
            "return key in self._places and self._places[key] == self._taken[self._run_of[key]]",
            "return not self._taken[run := self._run_of.get(key, -1)] and not self.holders.get(self.runs[run][0])",
        ),
        misbehave=0.9,
    ),
    _break(
        "the messages of a run come to several streams",
        "strict order",
        "runs",
        ("engine.dispatch.deliveries", "if self._parts.policy.group_run > 1:", "if self._parts.policy.group_run < 1:"),
        misbehave=0.9,
    ),
    _break(
        "group_rate is counted by each proxy alone",
        "rate",
        "paced",
        ("engine.store.limits.group_rate", "if full_ns is not None:", "if full_ns is not None and not full_ns:"),
    ),
    _break(
        "max_rate is counted by nobody",
        "rate",
        "rated",
        ("engine.store.limits.of_queue", "if policy.max_rate is not None:", "if policy.max_rate == 0:"),
    ),
    _break(
        "the holders of a semaphore are those of one queue",
        "semaphore",
        "mailing printing",
        (
            "engine.store.limits.semaphores",
            "return {**(self._known.tables if self._known is not None else {}), self._table.id: self._table}",
            "return {self._table.id: self._table}",
        ),
        misbehave=0.9,
    ),
    _break(
        "a message is delivered when one of its semaphores has a place",
        "semaphore",
        "mailing printing",
        (
            "engine.store.limits.semaphores",
            "return all(self._has_place(name) for name in self.needs.get(key, ()))",
            "return not self.needs.get(key) or any(self._has_place(name) for name in self.needs[key])",
        ),
        misbehave=0.9,
    ),
    _break(
        "parts that were delivered count as done",
        "follow-up",
        "batched",
        in_sql(
            (
                "$batch AND part.time_acked IS NULL\nLIMIT",
                "$batch AND part.time_acked IS NULL AND COALESCE(part.epoch, 0) = 0\nLIMIT",
            )
        ),
        misbehave=0.9,
    ),
    _break(
        "the claim of a follow-up does not search for parts",
        "follow-up",
        "batched parts wholes",
        ("engine.store.batches", "for key, open_ in _flags(sql, states) if open_)", "for key, _ in ())"),
    ),
    _break(
        "a capacity that was read once is never read again",
        "semaphore",
        "mailing printing",
        (
            "engine.store.limits.semaphores",
            'counts.capacities[(name or b"").decode()] = int(capacity or 0)',
            'counts.capacities[(name or b"").decode()] = text_values.__dict__.setdefault(name, int(capacity or 0))',
        ),
        misbehave=0.9,
        seconds=60,
    ),
    _break(
        "a dead part counts as done though its queue holds what follows it",
        "follow-up",
        "held",
        ("engine.store.batches", "and policy.dead_parts_hold and", "and policy.max_attempts < 0 and"),
        misbehave=0.9,
        seconds=25,
    ),
    _break(
        "dead messages are deleted and not copied",
        "lost",
        "failing",
        in_sql(
            (
                "SELECT $columns, $now_ns, NULL\nFROM $table FORCE INDEX ($id_index)\nWHERE",
                "SELECT $columns, $now_ns, NULL\nFROM $table FORCE INDEX ($id_index)\nWHERE FALSE AND",
            )
        ),
        (
            "engine.store.dead_letter",
            "if not inserted.affected == deleted.affected == len(keys):",
            "if not deleted.affected == len(keys):",
        ),
        misbehave=0.9,
    ),
    _break(
        "messages die one attempt too early",
        "dead too early",
        "failing",
        (
            "engine.dispatch.maintenance",
            "self.configured and self._policy.max_attempts <= entry.epoch",
            "self.configured and self._policy.max_attempts <= entry.epoch + 1",
        ),
        misbehave=0.9,
    ),
    _break(
        "FOR UPDATE locks nothing",
        "two holders",
        "locked",
        (
            "proxy.session.queries",
            ENGINE_SQL,
            ENGINE_SQL + '\n    text = text.replace("LIMIT $limit\\nFOR UPDATE SKIP LOCKED", "LIMIT $limit")',
        ),
    ),
    _break(
        "a message that was sent counts as unsent when it is released",
        "one claim, two deliveries",
        "plain",
        (MYSQL, "if not claim.sent and claim.key not in failed_ns", "if claim.key not in failed_ns"),
        (MYSQL, "for claim in ours if claim.sent}", "for claim in ours if False}"),
        misbehave=0.9,
    ),
    _break(
        "on_disconnect=keep is ignored",
        "two holders",
        "kept",
        ("engine.dispatch.deliveries", "if not (keep and lease.is_sent)", "if True"),
        misbehave=0.9,
    ),
    _break(
        "purging does not wait",
        "lost",
        "plain",
        in_sql((PURGE, PURGE.replace(" - $age_ns", ""))),
        (MYSQL, '"before_ns": now_at - age_ns', '"before_ns": now_at'),
        # Often enough for a short run.
        ("engine.dispatch.limits", "purge_pause_max_ns: int = 60 * NS_PER_S", "purge_pause_max_ns: int = NS_PER_S"),
    ),
    _break(
        "a claim that failed is under way for ever",
        "stuck|no progress",
        "audited",
        (
            "engine.dispatch.dispatcher",
            "        return self._claim_answered(now, claim_id, (), refused=known)",
            "        return []",
        ),
        proxies=1,
        faults=frozenset({"table_full"}),
        per_minute=30,
    ),
    _break(
        "a failover writes to both",
        "one claim, two deliveries|two holders|delivered after its ACK|written to two",
        "plain",
        (MYSQL, "        self._pool.abandon()\n        self._roster.abandon()", "        self._roster.abandon()"),
        seconds=25,
        replica=True,
    ),
)
"""Each a real bug of the real proxy."""
