"""Which server is the primary, case by case."""

from __future__ import annotations

from engine.primary.election import Decision, Election, Seen, State

WRITABLE = Seen(State.WRITABLE)
READ_ONLY = Seen(State.READ_ONLY, text="read_only=1")
AWAY = Seen(State.AWAY, text="refused")


def galera(state: State) -> Seen:
    return Seen(state, unit="cluster")


class Play:
    """An election, and the time: one second an observation."""

    def __init__(self) -> None:
        self.election = Election()
        self.now_s = 0.0

    def see(self, **seen: Seen) -> Decision:
        self.now_s += 1
        return self.election.observe(seen, self.now_s)

    def primary(self, **seen: Seen) -> str | None:
        return self.see(**seen).primary


def test_the_only_writable_server_is_the_primary() -> None:
    assert Play().primary(a=READ_ONLY, b=WRITABLE) == "b"


def test_a_failover_is_followed_when_the_other_server_becomes_writable() -> None:
    play = Play()
    assert play.primary(a=WRITABLE, b=READ_ONLY) == "a"
    assert play.primary(a=AWAY, b=READ_ONLY) is None
    assert play.see(a=AWAY, b=WRITABLE) == Decision("b", 3.0)


def test_a_switchover_passes_through_a_time_without_a_primary() -> None:
    play = Play()
    play.see(a=WRITABLE, b=READ_ONLY)
    between = play.see(a=READ_ONLY, b=READ_ONLY)
    assert between.primary is None
    assert "a: read_only=1; b: read_only=1" in between.problem
    assert play.primary(a=READ_ONLY, b=WRITABLE) == "b"


def test_a_server_that_was_away_for_a_moment_is_the_primary_again() -> None:
    play = Play()
    play.see(a=WRITABLE, b=READ_ONLY)
    play.see(a=AWAY, b=READ_ONLY)
    assert play.see(a=WRITABLE, b=READ_ONLY) == Decision("a", 3.0)


def test_a_former_primary_that_returns_writable_is_reported_and_not_used() -> None:
    play = Play()
    play.see(a=WRITABLE, b=READ_ONLY)
    play.see(a=AWAY, b=READ_ONLY)
    play.see(a=AWAY, b=WRITABLE)
    found = play.see(a=WRITABLE, b=WRITABLE)
    assert found.primary == "b"
    assert "a" in found.problem
    assert play.primary(a=WRITABLE, b=AWAY) is None
    assert play.primary(a=WRITABLE, b=WRITABLE) == "b"
    assert play.primary(a=WRITABLE, b=READ_ONLY) == "a"


def test_without_a_primary_before_two_writable_servers_are_both_not_used() -> None:
    play = Play()
    found = play.see(a=WRITABLE, b=WRITABLE)
    assert found.primary is None
    assert found.problem == "several servers accept writes, and none is used until the others are read-only: a, b"
    assert play.primary(a=WRITABLE, b=AWAY) is None
    assert play.primary(a=WRITABLE, b=READ_ONLY) == "a"


def test_a_server_that_is_promoted_beside_the_primary_ends_its_use() -> None:
    play = Play()
    play.see(a=WRITABLE, b=READ_ONLY)
    assert play.primary(a=WRITABLE, b=WRITABLE) is None
    assert play.primary(a=WRITABLE, b=AWAY) is None
    assert play.primary(a=AWAY, b=WRITABLE) == "b"


def test_it_is_used_again_if_that_promotion_is_taken_back() -> None:
    play = Play()
    play.see(a=WRITABLE, b=READ_ONLY)
    play.see(a=WRITABLE, b=WRITABLE)
    assert play.primary(a=WRITABLE, b=READ_ONLY) == "a"


def test_of_a_cluster_the_first_member_is_used_and_stays() -> None:
    play = Play()
    up, out, away = galera(State.WRITABLE), galera(State.READ_ONLY), AWAY
    assert play.primary(a=away, b=up, c=up) == "b"
    assert play.see(a=up, b=up, c=up) == Decision("b", 1.0)
    assert play.primary(a=up, b=out, c=up) == "a"
    assert play.primary(a=away, b=up, c=up) == "b"


def test_a_cluster_without_a_quorum_has_no_primary() -> None:
    play = Play()
    play.see(a=galera(State.WRITABLE), b=galera(State.WRITABLE))
    assert play.primary(a=galera(State.READ_ONLY), b=AWAY) is None


def test_two_addresses_of_one_server_are_no_rivals() -> None:
    same = Seen(State.WRITABLE, unit="uuid")
    assert Play().see(first=same, second=same) == Decision("first", 1.0)


def test_a_server_that_left_the_settings_does_not_count_any_more() -> None:
    play = Play()
    play.see(a=WRITABLE, b=READ_ONLY)
    play.see(a=WRITABLE, b=WRITABLE)
    assert play.primary(b=WRITABLE) == "b"
