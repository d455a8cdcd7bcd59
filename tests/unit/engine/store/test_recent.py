"""The mapping that drops its least recently used entry."""

from __future__ import annotations

import threading

from engine.store.recent import Recent


def test_a_value_is_kept_until_it_is_dropped() -> None:
    recent: Recent[str, int] = Recent(2)
    recent.put("a", 1)
    recent.put("a", 2)
    assert (recent.get("a", 0), recent.get("b", 0), "a" in recent, len(recent)) == (2, 0, True, 1)
    recent.forget("a")
    recent.forget("a")
    assert (recent.get("a", 0), len(recent)) == (0, 0)


def test_beyond_its_size_the_least_recently_used_entry_is_dropped() -> None:
    recent: Recent[str, int] = Recent(2)
    recent.put("a", 1)
    recent.put("b", 2)
    assert recent.get("a", 0) == 1
    recent.put("c", 3)
    assert ("a" in recent, "b" in recent, "c" in recent) == (True, False, True)


def test_threads_keep_it_within_its_size() -> None:
    recent: Recent[int, int] = Recent(10)
    faults: list[Exception] = []

    def work(first: int) -> None:
        try:
            for number in range(first, first + 2_000):
                recent.put(number % 50, number)
                assert recent.get(number % 50, number) % 50 == number % 50
                recent.forget((number + 25) % 50)
        except Exception as fault:  # noqa: BLE001
            faults.append(fault)

    threads = [threading.Thread(target=work, args=[1_000 * number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert len(recent) <= 10
