"""The limits of a queue in one claim: a module for each of them.

A limit has two sides. A `Limit` is its SQL: the rows that a claim locks for it, what is read behind these
locks and behind those of the messages, and what is written. Its `Choice` is what that has shown: which
messages have a place, and what is left behind the claim. The store of the tests makes the same choices from
its rows in memory.

`ClaimLimits` iterates over the limits of a claim. Nothing outside this package names one of them, but
for that store. A new one is a module here, and a name in `KEPT_BY`.
"""
