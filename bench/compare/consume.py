"""Consumers for servers with simple protocols: processes that share the messages.

    python -m bench.compare.consume PROTOCOL PORT CONSUMERS BATCH MESSAGES

They connect, print a line, and begin when they read one. The answer is the seconds until the last
has finished its share, and the CPU seconds of all. Each protocol is written out in protocols.py, with
no more work for a message than it needs: the consumers share the cores with the server.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from collections.abc import Sequence

from bench.compare.protocols import PROTOCOLS
from bench.compare.shares import shares


def main(arguments: Sequence[str]) -> None:
    protocol = PROTOCOLS[arguments[0]]
    port, consumers, batch, messages = map(int, arguments[1:])
    fork = multiprocessing.get_context("fork")
    connected, begin = fork.Barrier(consumers + 1), fork.Barrier(consumers + 1)

    def work(number: int, share: int) -> None:
        client = protocol(port, f"consumer{number}")
        connected.wait()
        begin.wait()
        client.consume(share, batch)

    workers = [fork.Process(target=work, args=pair) for pair in enumerate(shares(messages, consumers))]
    for worker in workers:
        worker.start()
    connected.wait()
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    begin.wait()
    for worker in workers:
        worker.join()
    seconds = time.monotonic() - began
    for worker in workers:
        if worker.exitcode:
            sys.exit("a consumer failed: see above")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(seconds, used.ru_utime + used.ru_stime)


if __name__ == "__main__":
    main(sys.argv[1:])
