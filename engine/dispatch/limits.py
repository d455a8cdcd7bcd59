"""How much the dispatcher does at a time, and how long it leaves things alone: each limit with its
reason."""

from __future__ import annotations

from dataclasses import dataclass

from engine.model import NS_PER_S

MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Limits:
    """The dispatcher's own bounds. Durations are monotonic."""

    scan_min: int = 64
    """Keys read by a scan of an idle table: enough that a trickle needs one scan, cheap when most
    are not due."""
    window_max: int = 10_000
    """Keys read ahead at most: at 10,000 the scan costs a few µs a message, and more would only be
    staler."""
    claim_max: int = 1_000
    """Rows a claim takes at most: larger ones gain nothing (measured) and hold their locks
    longer."""
    claims_max: int = 2
    """Claims under way: a second one hides the commit of the first."""
    filter_groups_max: int = 64
    """Different conditions that the streams of one table have: each is scanned for by itself."""
    scans_max: int = 2
    """Scans of one table under way, for different conditions: they share the engine's threads with
    other tables."""
    ahead_ns: int = 10 * NS_PER_S
    """How far into the future a scan for a condition reads; after so long there is another one."""
    dead_letter_retry_ns: int = 60 * NS_PER_S
    """A dead message that cannot be moved is left alone for so long: somebody has to mend its
    dead-letter table."""
    dead_letter_pause_min_ns: int = 10 * MS
    dead_letter_pause_max_ns: int = 1_000 * MS
    """Pause after some dead messages could not be moved, doubling: somebody has them locked."""
    dead_scan_ns: int = 300 * NS_PER_S
    """Between scans for dead messages of a table that nobody streams from, at least: what becomes
    dead here is known without a scan, so these find what a proxy that died has left behind."""
    dead_later_max: int = 10_000
    """Dead messages remembered that are to be moved when they come due; more are left to scans."""
    clock_step_ns: int = NS_PER_S
    """The server's clock has been set back when it shows so much less than before; its estimate
    varies by less."""
    fetch_max: int = 1_000
    """Rows one fetch asks for at most, to keep the statement small."""
    lookup_max: int = 1_000
    """Leases looked up in one statement."""
    suspects_max: int = 10_000
    """Suspect messages of other proxies that wait for a lookup: with more, the whole table is
    scanned instead."""
    lookup_pause_min_ns: int = 20 * MS
    lookup_pause_max_ns: int = 1_000 * MS
    """Pause between lookups that find nothing: acknowledgements that bypass the proxy are seen
    within it."""
    rescan_pause_ns: int = 50 * MS
    """Pause between scans while there still are ready keys: bounds how long a more urgent message
    goes unseen."""
    stale_ns: int = 100 * MS
    """Keys read ahead longer ago than that, while nobody could be given any, are read again before
    one is claimed, if something was committed since: or a message would go before more urgent ones
    that were there long before."""
    failure_pause_min_ns: int = 100 * MS
    failure_pause_max_ns: int = 5_000 * MS
    """Pause after a failure of the database, doubling: soon enough for a restart, no storm on a
    sick server."""
    purge_rows: int = 500
    """Rows deleted at a time: a few ms of locks."""
    purge_pause_min_ns: int = NS_PER_S
    purge_pause_max_ns: int = 60 * NS_PER_S
    """Between purges that find little: a tenth of vt_purge_after, between these."""
