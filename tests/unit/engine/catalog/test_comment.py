"""The directives of a table's comment, and the problems of wrong ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.catalog.directives import (
    OPTIONS,
    combination_problem,
    comment_warnings,
    make_comment,
    option_problem,
    parse_comment,
    queue_values,
    split_comment,
    text_problem,
    with_source,
)
from engine.model import NS_PER_S, TableId
from engine.queue_table import OnDisconnect, Policy

S = NS_PER_S
REQUIRED = {
    "vt_ack_wait": "30",
    "vt_purge_after": "86400",
    "vt_batch_size": "10",
    "vt_cache_size": "1000",
    "vt_poller_interval": "30",
}


def comment(**directives: str | None) -> str:
    """A good comment, with these directives changed, added, or (None) left out."""
    merged = {**REQUIRED, **directives}
    parts = [f"{key}={value}" for key, value in merged.items() if value is not None]
    return ",".join(["vitess_message", *parts])


def policy(**directives: str | None) -> Policy:
    parsed = parse_comment(comment(**directives))
    assert isinstance(parsed, Policy), parsed
    return parsed


def problems(**directives: str | None) -> tuple[str, ...]:
    parsed = parse_comment(comment(**directives))
    assert isinstance(parsed, tuple), parsed
    return parsed


@pytest.mark.parametrize("text", ["", "orders", "vitess_messages,vt_ack_wait=1", "my_vitess_message", "VITESS_MESSAGE"])
def test_a_comment_without_the_word_marks_no_message_table(text: str) -> None:
    assert parse_comment(text) is None


@pytest.mark.parametrize("prefix", ["orders: ", "mail,", "(", "see the wiki,vitess_message,"])
def test_the_word_may_stand_anywhere(prefix: str) -> None:
    assert isinstance(parse_comment(prefix + comment()), Policy)


def test_the_required_directives_are_enough() -> None:
    assert policy() == Policy(
        ack_wait_ns=30 * S,
        purge_after_ns=86_400 * S,
        batch_size=10,
        cache_size=1000,
        poller_interval_ns=30 * S,
        min_backoff_ns=30 * S,
        max_backoff_ns=None,
        message_columns=None,
        max_in_flight=None,
        on_disconnect=OnDisconnect.RELEASE,
        max_attempts=0,
        dead_letter=None,
        max_rate=None,
        paused=False,
    )


def test_spaces_around_keys_and_values_do_not_matter() -> None:
    spaced = comment().replace(",", " , ").replace("=", " = ")
    assert parse_comment(spaced) == policy()


def test_fractions_of_a_second_are_exact() -> None:
    assert policy(vt_ack_wait="0.1").ack_wait_ns == 100_000_000
    assert policy(vt_ack_wait=".25", vt_min_backoff="1.000000001").min_backoff_ns == S + 1


def test_the_least_backoff_is_the_ack_wait_unless_given() -> None:
    assert policy(vt_ack_wait="7").min_backoff_ns == 7 * S
    assert policy(vt_ack_wait="7", vt_min_backoff="9").min_backoff_ns == 9 * S


def test_the_optional_directives_are_taken() -> None:
    parsed = policy(
        vt_max_backoff="3600",
        vt_message_cols="id| body|tenant",
        max_in_flight="50",
        on_disconnect="keep",
    )
    assert parsed.max_backoff_ns == 3600 * S
    assert parsed.message_columns == ("id", "body", "tenant")
    assert parsed.max_in_flight == 50
    assert parsed.on_disconnect is OnDisconnect.KEEP


def test_what_bounds_deliveries_is_taken() -> None:
    parsed = policy(max_attempts="5", dead_letter="shop.mail_dead", max_rate="0.5", paused="1")
    assert (parsed.max_attempts, parsed.dead_letter) == (5, ("shop", "mail_dead"))
    assert parsed.max_rate == pytest.approx(0.5)
    assert parsed.paused
    assert not policy(paused="0").paused


def test_unknown_keys_are_ignored() -> None:
    assert policy(vt_min_backof="x", color="blue") == policy()


@pytest.mark.parametrize("key", REQUIRED)
def test_a_missing_directive_is_named_with_its_meaning_and_an_example(key: str) -> None:
    (problem,) = problems(**{key: None})
    assert problem.startswith(f"{key} is missing: ")
    assert f"for instance {key}=" in problem


def test_all_problems_are_reported_at_once() -> None:
    found = problems(vt_ack_wait=None, vt_batch_size="x", on_disconnect="drop")
    assert [problem.split(maxsplit=1)[0] for problem in found] == [
        "vt_ack_wait",
        "vt_batch_size='x'",
        "on_disconnect='drop'",
    ]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vt_ack_wait", ""),
        ("vt_ack_wait", "0"),
        ("vt_ack_wait", "-1"),
        ("vt_ack_wait", "1e3"),
        ("vt_ack_wait", "30s"),
        ("vt_ack_wait", "99999999999"),
        ("vt_ack_wait", "NaN"),
        ("vt_ack_wait", "٣"),
        ("vt_purge_after", "-0.5"),
        ("vt_batch_size", "0"),
        ("vt_batch_size", "1.5"),
        ("vt_cache_size", "1000001"),
        ("vt_poller_interval", "0.001"),
        ("vt_min_backoff", "soon"),
        ("vt_max_backoff", "0"),
        ("vt_message_cols", ""),
        ("vt_message_cols", "id||body"),
        ("vt_message_cols", "id|ID"),
        ("max_attempts", "-1"),
        ("dead_letter", "a b"),
        ("max_rate", "0"),
        ("max_in_flight", "0"),
        ("on_disconnect", "RELEASE"),
    ],
)
def test_a_bad_value_is_shown_with_what_was_expected(key: str, value: str) -> None:
    found = problems(**{key: value})
    expected = next(problem for problem in found if problem.startswith(f"{key}={value!r} is not "))
    assert f"for instance {key}=" in expected


def test_a_directive_given_twice_is_a_problem() -> None:
    parsed = parse_comment(comment() + ",vt_ack_wait=60")
    assert parsed == ("vt_ack_wait stands in the comment more than once: keep one of them",)


def test_max_attempts_needs_a_place_for_dead_messages() -> None:
    (problem,) = problems(max_attempts="3")
    assert problem.startswith("max_attempts needs dead_letter: ")


def test_the_greatest_backoff_cannot_be_below_the_least() -> None:
    (problem,) = problems(vt_min_backoff="60", vt_max_backoff="30")
    assert problem == "vt_max_backoff='30' is less than vt_min_backoff"
    (problem,) = problems(vt_ack_wait="60", vt_max_backoff="30")
    assert problem == "vt_max_backoff='30' is less than vt_ack_wait"


@given(st.text(alphabet="vitess_message,=|.0123 abk\n٣é", max_size=80))
def test_no_comment_breaks_the_reader(text: str) -> None:
    parsed = parse_comment("vitess_message," + text)
    assert parsed is None or isinstance(parsed, tuple | Policy)


def test_a_comment_is_taken_apart_and_put_together_again() -> None:
    values, rest = split_comment("vitess_message,vt_ack_wait=30, max_rate = 5 ,orders, paid=yes")
    assert (values, rest) == ({"vt_ack_wait": "30", "max_rate": "5"}, "orders, paid=yes")
    assert make_comment(values, rest) == "vitess_message,vt_ack_wait=30,max_rate=5,orders, paid=yes"


def test_the_defaults_of_a_queue_are_a_policy() -> None:
    policy = parse_comment(make_comment(queue_values({})))
    assert isinstance(policy, Policy)
    assert (policy.ack_wait_ns, policy.purge_after_ns, policy.max_backoff_ns) == (30 * S, 86_400 * S, 3_600 * S)
    assert (policy.batch_size, policy.cache_size, policy.poller_interval_ns) == (100, 10_000, 30 * S)


def test_the_greatest_wait_is_by_default_no_less_than_the_first() -> None:
    assert queue_values({"vt_ack_wait": "7200"})["vt_max_backoff"] == "7200"
    assert queue_values({"vt_ack_wait": "7200", "vt_max_backoff": "9000"})["vt_max_backoff"] == "9000"


def test_every_directive_is_an_option_that_names_what_it_takes() -> None:
    assert {OPTIONS[name] for name in OPTIONS} >= {"vt_ack_wait", "max_rate", "dead_letter"}
    assert option_problem("ACK_WAIT", "30") is None
    for name in OPTIONS:
        problem = option_problem(name, "no, such")
        assert problem is not None
        assert problem.startswith(name)
    assert option_problem("ACK_WAIT", "soon") == (
        "ACK_WAIT = 'soon' is not a number of seconds from 0.001 to 3153600000: seconds to wait for the ACK of a first"
        " delivery, for instance ACK_WAIT = 30"
    )


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"max_attempts": "5"}, "DEAD_LETTER"),
        ({"dead_letter": "x"}, "MAX_ATTEMPTS"),
        ({"dead_letter": "x", "max_attempts": "0"}, "MAX_ATTEMPTS"),
        ({"vt_max_backoff": "1"}, "MAX_BACKOFF"),
    ],
)
def test_options_that_cannot_stand_together_are_named(values: dict[str, str], word: str) -> None:
    problem = combination_problem(queue_values(values))
    assert problem is not None
    assert word in problem
    assert combination_problem(queue_values({})) is None


@pytest.mark.parametrize("values", [{}, {"vt_ack_wait": "soon"}, {"max_attempts": "many", "vt_max_backoff": "late"}])
def test_values_that_are_wrong_by_themselves_combine_with_all_others(values: dict[str, str]) -> None:
    assert combination_problem({"vt_max_backoff": "9", **values}) is None


def test_a_text_besides_the_directives_may_not_be_one() -> None:
    assert text_problem("orders, paid=yes") is None
    problem = text_problem("orders, max_rate=5")
    assert problem is not None
    assert "MAX_RATE" in problem


# What is ignored.


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("max_attemps", "max_attempts"),
        ("attempts", "max_attempts"),
        ("Max_Attempts", "max_attempts"),
        ("rate", "max_rate"),
        ("deadletter", "dead_letter"),
        ("vt_ack_wiat", "vt_ack_wait"),
        ("ack_wait", "vt_ack_wait"),
        ("vt_max_attempts", "max_attempts"),
        ("on_disconect", "on_disconnect"),
        ("message_cols", "vt_message_cols"),
    ],
)
def test_a_directive_that_does_not_exist_is_a_warning_with_the_nearest_name(written: str, meant: str) -> None:
    assert isinstance(parse_comment(comment(**{written: "3"})), Policy)
    (warning,) = comment_warnings(comment(**{written: "3"}))
    assert warning == (f"{written}=… in the COMMENT is ignored, because there is no such directive: was {meant} meant?")


def test_one_that_is_like_none_is_told_once_with_how_to_write_a_note() -> None:
    (warning,) = comment_warnings(comment(colour="red") + ", colour=green")
    assert warning.startswith("colour=… in the COMMENT is ignored")
    assert warning.endswith("a note is better written without =")


@pytest.mark.parametrize(
    "note",
    [
        "what the shop sold",
        "max_attempts",
        "see https://wiki/queues?page=7",
        "a = b or so = on",
        "price in € = gross",
        "=",
        "= 3",
        "",
        "vitess_sequence",
    ],
)
def test_notes_and_known_directives_are_no_warnings(note: str) -> None:
    everything = dict.fromkeys(OPTIONS.values(), "1")
    assert comment_warnings(f"{comment(**everything)},{note}") == ()


# Whose dead messages a table takes.


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("mail", [(None, "mail")]),
        ("mail|shop.orders", [(None, "mail"), ("shop", "orders")]),
        (" mail | größe-2 ", [(None, "mail"), (None, "größe-2")]),
        ("`a b`|`x|y`.`a``.b`", [(None, "a b"), ("x|y", "a`.b")]),
    ],
)
def test_tables_whose_dead_messages_come_here_are_named_with_or_without_database(
    text: str, named: list[tuple[str | None, str]]
) -> None:
    assert list(policy(dead_letter_of=text).dead_letter_of) == named


@pytest.mark.parametrize(
    ("text", "named"), [("`d.dead`", (None, "d.dead")), ("shop.`a b`", ("shop", "a b")), ("`x|y`", (None, "x|y"))]
)
def test_a_dead_letter_table_with_an_odd_name_stands_in_backquotes(text: str, named: tuple[str | None, str]) -> None:
    assert policy(max_attempts="5", dead_letter=text).dead_letter == named


@pytest.mark.parametrize("text", ["", "|", "mail|", "|mail", "a b", "a.b.c", "shop.", ".mail", "`mail", "``"])
def test_what_names_no_tables_is_a_problem(text: str) -> None:
    (problem,) = problems(dead_letter_of=text)
    assert "list of table names" in problem


@pytest.mark.parametrize("name", ["orders", "a b", "a`b", "x.y", "ü", "a|b", "=", "1"])
@pytest.mark.parametrize("db", ["shop", "odd `|.db"])
def test_a_consent_that_is_written_names_that_table_and_keeps_the_others(db: str, name: str) -> None:
    source = TableId(db, name)
    values = with_source({**REQUIRED, "dead_letter_of": "first"}, TableId("shop", "dead"), source)
    assert values is not None
    parsed = parse_comment(make_comment(values))
    assert isinstance(parsed, Policy), parsed
    assert [TableId(db or "shop", name) for db, name in parsed.dead_letter_of] == [TableId("shop", "first"), source]


def test_a_name_with_a_comma_cannot_stand_in_a_comment() -> None:
    assert with_source(REQUIRED, TableId("shop", "dead"), TableId("shop", "a,b")) is None
