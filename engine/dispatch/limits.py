"""The bounds of the dispatcher, each with its reason."""

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
    window_max: int = 2_000
    """Keys read ahead at most: a result of so many holds the event loop for some ms. With 10,000, a
    third of all CPU time went into keys that were scanned again (measured)."""
    locks_window_max: int = 8_000
    """Keys read ahead at most for streams FOR UPDATE that use up what a scan has read within `window_lasts_ns`. Their
    consumers took 2,000 messages within 20 ms and then waited for the next scan as long: a drain was a
    fifth slower (measured)."""
    window_lasts_ns: int = 100 * MS
    """What streams FOR UPDATE use up within this time is too little to be read at once, and what lasts
    for twice as long is too much."""
    over_max: int = 10_000
    """Messages remembered, for each scan under way, that clients acknowledged or deleted since it began. It may
    show them, and then claims of them miss. Streams FOR UPDATE acknowledge thousands during one scan."""
    claim_max: int = 300
    """Rows a claim takes at most. With 1,000, and twice as many keys read ahead, a drain was up to a
    tenth slower, and other clients waited for the event loop half as long again (measured). With 128 the
    cost of the statements shows."""
    lock_max: int = 500
    """Messages offered to one stream FOR UPDATE at once, where its table's batches are smaller. Its client's
    session reads the rows, so the proxy holds none of them, and larger statements are cheaper (measured: a
    tenth)."""
    bounded_grace_ns: int = NS_PER_S
    """A bounded stream ends at the latest so long after the time that it waits for its first message, whatever is
    under way for it: a claim on a server that stands still returns after half a minute. Then the claim is given
    back."""
    bounded_stall_ns: int = 5 * NS_PER_S
    """A bounded stream ends at the latest so long after its begin, and after its last message: a stream that
    does not wait gets messages from a server that takes so long for a scan and a claim. Behind messages that it
    has locked it is `bounded_grace_ns`: other transactions wait for the locks."""
    ends_max: int = 500
    """Leases that one decision, or one event, ends at most, because they have expired or their client or its
    transaction is gone; the others in the next decision. Each takes the event loop up to 8 µs, and a client may hold a
    hundred thousand."""
    locks_turn_max: int = 1_000
    """Messages offered to all of them in one decision, the others in the next one: more hold the event loop for
    several ms."""
    claims_max: int = 2
    """Claims under way: a second one hides the commit of the first."""
    filter_groups_max: int = 64
    """Different conditions of the streams of one table: each has scans of its own."""
    scans_max: int = 2
    """Scans of one table under way, for different conditions: they share the engine's threads with
    other tables."""
    ahead_ns: int = 10 * NS_PER_S
    """How far into the future a scan for a condition reads. After this time there is another
    scan."""
    dead_letter_retry_ns: int = 60 * NS_PER_S
    """Pause before a dead message that cannot be moved is tried again: somebody has to repair its
    dead-letter table."""
    dead_letter_pause_min_ns: int = 10 * MS
    dead_letter_pause_max_ns: int = 1_000 * MS
    """Pause after some dead messages could not be moved, doubling: they are locked."""
    dead_scan_ns: int = 300 * NS_PER_S
    """Least interval of scans for dead messages of a table without streams. Messages that become
    dead here are known without a scan, so these scans find those that a proxy that died has
    left."""
    dead_later_max: int = 10_000
    """Dead messages remembered until they come due; others are left to scans."""
    clock_step_ns: int = NS_PER_S
    """The server's clock was set back if it shows so much less than before: its estimate varies by
    less."""
    fetch_max: int = 1_000
    """Rows of one fetch at most, to keep the statement small."""
    lookup_max: int = 400
    """Leases looked up in one statement. If all of them are over, its answer takes the event loop 12 µs
    for each: with 1,000, other sessions waited for longer than 10 ms."""
    suspects_max: int = 10_000
    """Suspect messages without a lease that wait for a lookup. With more, the whole table is
    scanned instead."""
    suspected_max: int = 1_000
    """Messages of one report that become suspect one by one, 3 µs each. A report of more is one of any
    message: all leases are looked up."""
    lookup_pause_min_ns: int = 20 * MS
    lookup_pause_max_ns: int = 1_000 * MS
    """Pause between lookups that find no change: acknowledgements that bypass the proxy are seen
    within it."""
    rescan_pause_ns: int = 50 * MS
    """Pause between scans while keys are ready: bounds how long a more urgent message stays
    unseen."""
    confirm_pause_ns: int = NS_PER_S
    """After so long a scan confirms claims of messages that no scan had shown. Usually it finds
    nothing: a wrong key is nearly always missed by its claim, and then the scan comes at once."""
    stale_ns: int = 100 * MS
    """Keys that were read longer ago are read again before one is claimed, if a transaction was
    committed since and no stream had credit: otherwise they would be delivered before more
    urgent messages."""
    abandoned_pause_ns: int = 1_200 * MS
    """Pause between the two searches that show that a proxy is gone: longer than a proxy takes to
    notice that its connection with the lock is broken (`roster_interval_s`), and to replace it."""
    share_grace_ns: int = 50 * MS
    """How long a due message of another share is left to its own proxy: several times what a scan
    and a claim take on a quiet server."""
    share_grace_max_ns: int = NS_PER_S
    """How long it is left to it on a busy server: three times what they took here last, and this at most."""
    share_lag_ns: int = NS_PER_S
    """A message of another share is taken at once if its own proxy is behind this one by so much: then it is slower."""
    share_check_ns: int = 100 * MS
    """Pause before a scan for messages that are left to other proxies, while messages of the own share are ready:
    bounds how long a more urgent one waits for a proxy that does not take it."""
    in_vain_max: int = 16
    """Misses of claims, above half of what claims take, after which a proxy with a share reads its keys
    again: the others have taken many of them, because it was slow or stood still."""
    contention_bound: int = 64
    """Evidence after which a condition's streams use shares, or use none any more: 16 misses in a row, or
    64 messages that waited for a proxy that did not take them."""
    others_scan_min: int = 16
    """Messages of other shares that a scan reads at first, then twice as many while most of them wait for too long, or
    nothing of the own share is ready."""
    group_pause_ns: int = 10 * MS
    """Pause between group scans: refills are decided so often."""
    group_quota_min: int = 8
    """Messages of one group that a group scan reads at least. A read by name costs about as much as 20
    messages (measured)."""
    group_quota_max: int = 250
    """Messages of one group that a group scan reads at most: a refill comes every 10 ms if it is needed, and a
    few groups must not fill the read-ahead buffer."""
    refills_max: int = 64
    """Groups that one group scan reads by name: some 20 ms on a busy server."""
    probes_max: int = 4
    """Groups of arrivals that one group scan reads by name, for older messages of theirs."""
    deep_max: int = 1_024
    """Groups that are read by name when they run low. Others wait for the rotation."""
    deep_share: int = 256
    """A group is deep if a scan shows at least one of so many messages for it."""
    rotation_step_max: int = 1_000
    rotation_entries_max: int = 2_000
    """Index entries that a step of the rotation, and the rotation of one group scan, read at most: some
    5 and 10 ms."""
    rotation_share: int = 4
    """The rotation pauses so many times as long as it took."""
    rotation_pause_ns: int = NS_PER_S
    """Pause between two passes at least: each finds only what reports and arrivals have not shown."""
    arrivals_max: int = 256
    """Arrivals that one group scan reads."""
    arrivals_pause_min_ns: int = 3 * MS
    """Pause between reads of arrivals that were reported."""
    arrivals_pause_max_ns: int = 50 * MS
    """Pause between reads of arrivals that were not: messages that come due by time."""
    limited_pause_min_ns: int = 50 * MS
    limited_pause_max_ns: int = 1_000 * MS
    """Pause before another claim of a queue whose limit is reached by messages of other proxies,
    doubling. Usually a report that a place is free comes before: this bounds the wait without one."""
    batch_parts_max: int = 1_000
    """Acknowledged parts whose batches are checked by name. With more, all follow-ups are."""
    batch_step_max: int = 1_000
    """Follow-ups that one check reads at most: some 10 ms."""
    batch_ahead: int = 16
    """So many upcoming messages are checked for each follow-up that was set aside. Otherwise a
    thousand at the front would need as many claims."""
    batch_share: int = 4
    """A pass through all follow-ups pauses so many times as long as its last step took."""
    batch_pause_min_ns: int = 10 * MS
    batch_pause_max_ns: int = NS_PER_S
    """Pause between checks of a part whose commit is not visible yet, doubling; the first of these
    between two steps of a pass at least."""
    failure_pause_min_ns: int = 100 * MS
    failure_pause_max_ns: int = 5_000 * MS
    """Pause after a failure of the database, doubling: short enough for a restart, and no storm of
    statements on a failing server."""
    refused_max: int = 500
    """Messages that are passed over because the server refuses them. Each is remembered, makes each scan read
    one more key, and costs a claim a minute."""
    refused_in_a_row_max: int = 64
    """Messages refused one after the other before each claim waits for `failure_pause_min_ns`: then the reason is
    probably none of them, and each costs a statement. A longer pause would leave no claims for the messages behind
    `refused_max` others, which are tried again every minute."""
    refused_pause_min_ns: int = NS_PER_S
    refused_pause_max_ns: int = 60 * NS_PER_S
    """Pause before a message that was refused alone is claimed again, doubling: somebody has to repair the row,
    its table or a trigger."""
    refused_kept_ns: int = 180 * NS_PER_S
    """A message that was refused, and has not been tried for so long after its pause, is forgotten: nothing
    reports that a row was deleted elsewhere."""
    purge_rows: int = 500
    """Rows deleted by one purge: a few ms of locks."""
    purge_pause_min_ns: int = NS_PER_S
    purge_pause_max_ns: int = 60 * NS_PER_S
    """Least and greatest pause between purges that find little; in between, a tenth of
    vt_purge_after."""
