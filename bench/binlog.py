"""Latency of messages inserted on the server itself, with and without the binary log; its cost.

The latency is from the moment before the INSERT to the row in the consumer's hand. Without the
binary log the poller finds the message, here every second. The time of the INSERT alone is printed
beside it. Then workers drain a backlog through the proxy, with the binary log followed and not
followed.

`make bench-parts` runs it. Trust the ratios rather than the absolute figures.
"""

from __future__ import annotations

import os
import time
import urllib.request

from bench.queues import CREATE, MESSAGES, connect, create, fill, latencies, percentiles, poll, rate
from demo.ackstream import DIRECTIVES, Running, ackstream

SAMPLES = 300
SAMPLES_POLLED = 20
PATIENT = DIRECTIVES.replace("vt_poller_interval=30", "vt_poller_interval=1")


def await_log(running: Running) -> None:
    """Wait until the binary log is followed."""
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{running.admin_port}/metrics") as answer:
            if b"ackstream_binlog_following 1.0" in answer.read():
                return
        time.sleep(0.05)


def main() -> None:
    for setting, samples in (("auto", SAMPLES), ("off", SAMPLES_POLLED)):
        os.environ["ACKSTREAM_BINLOG"] = setting
        with ackstream() as running:
            create(running.port, CREATE.replace(DIRECTIVES, PATIENT))
            if setting == "auto":
                await_log(running)
            received, inserts = latencies(running.port, running.server_port, samples)
            fill(connect(running.port), MESSAGES)
            drained = rate(poll, running.port, MESSAGES)
        print(f"binlog {setting}: direct INSERT to delivery  {percentiles(received)}")
        print(f"binlog {setting}: the INSERT alone           {percentiles(inserts)}")
        print(f"binlog {setting}: drain                      {drained:,.0f} messages/s")


if __name__ == "__main__":
    main()
