"""When a dispatcher has to decide again, if no other event comes before. All times are monotonic."""

from __future__ import annotations

from engine.dispatch.parts import Parts


def next_wake_ns(parts: Parts) -> int | None:
    """The next time after the last decisions at which something may follow from the time alone;
    None: never."""
    now = parts.now
    times = [parts.releases.release_ns]
    if (deadline_ns := parts.leases.next_deadline_ns) is not None:
        times.append(now.until(deadline_ns))
    if parts.more:
        times.append(now.mono_ns + 1)
    if not parts.draining:
        times += [
            parts.purges.purge_ns,
            parts.abandoned.search_ns,
            *parts.dead_letters.wake_times(now),
            *_scan_times(parts),
            *parts.follow_ups.wake_times(demand=bool(parts.groups.subscribers)),
        ]
        for group in parts.groups:
            times += [group.subscribers.next_first_wait_end_ns(), group.subscribers.next_last_end_ns()]
        if parts.verification.has_suspects or parts.acknowledgements_needed():
            times.append(parts.verification.pause_until_ns)
    return min([at_ns for at_ns in times if at_ns is not None and at_ns > now.mono_ns], default=None)


def _scan_times(parts: Parts) -> list[int | None]:
    """When the next scan or claim may start."""
    now, scans, dead_letters = parts.now, parts.scans, parts.dead_letters
    times: list[int | None] = [scans.rescan_ns] if parts.groups.subscribers else []
    groups = parts.groups_with_demand()
    for group in groups:
        times += scans.wake_times(group, now)
        if group.scans.buffer.ready:
            times += [parts.capacity.paced_until_ns, parts.refusals.pause_until_ns]
    if parts.groups.with_credit():
        times += [parts.capacity.reopen_ns(now), parts.places.next_ns(now)]
    if dead_letters.scanned_for:
        times.append(scans.dead_scan_ns(now))
    if groups or dead_letters.due_count or dead_letters.scanned_for:
        times.append(parts.failure_pause.until_ns)
    return times
