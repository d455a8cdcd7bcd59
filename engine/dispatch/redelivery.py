"""How long a delivery waits for its acknowledgement.

Delivery k (k = 0, 1, …: the row's epoch before the claim) waits `vt_ack_wait · 2^k`, but at
least `vt_min_backoff` and at most `vt_max_backoff`. From the second delivery on, up to a third
is added at random for each row, so that messages that failed together do not come back together.
It is added after the limits are applied, because rows at the maximum need the spread most.
"""

from __future__ import annotations

from engine.model import NS_PER_S
from engine.queue_table import Policy

JITTER_MAX = 0.33
"""The share of its wait that a redelivery may be later by."""

WAIT_MAX_NS = 100 * 365 * 24 * 3600 * NS_PER_S
"""A hundred years: no wait is longer, so that now + wait stays far within a bigint."""


def wait_ns(policy: Policy, epoch: int, jitter: float) -> int:
    """The wait of the delivery that takes a row from `epoch` to `epoch + 1`; `jitter` is from [0,
    1)."""
    doublings = max(0, epoch)
    if doublings > policy.ack_wait_ns.bit_length() + WAIT_MAX_NS.bit_length():
        doublings = WAIT_MAX_NS.bit_length()  # Beyond it the cap decides, and the shift would only grow.
    wait = max(policy.ack_wait_ns << doublings, policy.min_backoff_ns)
    wait = min(wait, WAIT_MAX_NS if policy.max_backoff_ns is None else policy.max_backoff_ns)
    if epoch > 0:
        wait += int(wait * JITTER_MAX * jitter)
    return min(wait, WAIT_MAX_NS)
