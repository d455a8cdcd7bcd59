"""The server's syntax errors about statements that were sent in place of a client's."""

from __future__ import annotations

import pytest

from sqlrewrite.ack import parse_settle
from sqlrewrite.server_errors import TEXT_MAX, in_own_words, quoted_place, same_place

MYSQL = "You have an error in your SQL syntax; check … the right syntax to use near '{}' at line {}"


def near(own: str, quoted: str, line: int = 1) -> str:
    """What the client's error quotes, if the server's quotes `quoted`."""
    sent = parse_settle(own.encode()).update().decode()
    error = in_own_words(MYSQL.format(quoted, line), sent, own, "ACK", "it is wrong")
    assert error.code == 1064
    return error.message.removeprefix("You have an error in your ACK statement near ").removesuffix(": it is wrong")


@pytest.mark.parametrize(
    ("own", "quoted", "shown"),
    [
        ("ACK FROM m WHERE id = 1 delay 3", "delay 3\n)", "'delay 3' at line 1"),
        ("ACK FROM m WHERE id = 1 delay 3;", "delay 3\n)", "'delay 3' at line 1"),
        ("ACK FROM m WHERE id = ", ")", "'' at line 1"),
        ("ACK FROM m\nWHERE id = 1\n  AND", ")", "'' at line 3"),
        ("ACK FROM m\nWHERE id = 1\n  delayed 3", "delayed 3\n)", "'delayed 3' at line 3"),
        ("NACK FROM m WHERE id == 1 DELAY 3", "== 1\n)", "'== 1 DELAY 3' at line 1"),
        ("NACK FROM m WHERE id == 1 DELAY 3", "= 1\n)", "'= 1 DELAY 3' at line 1"),
        ("EXTEND FROM m WHERE id = AND 3 BY 4", "AND 3\n)", "'AND 3 BY 4' at line 1"),
        ("EXTEND FROM m WHERE id = BY 4", ")", "'BY 4' at line 1"),
        ("ACK m WHERE a = 'it''s' x", "x\n)", "'x' at line 1"),
        ("ACK m WHERE note LIKE 'ö' x", "x\n)", "'x' at line 1"),
    ],
)
def test_the_client_gets_an_error_about_its_own_text(own: str, quoted: str, shown: str) -> None:
    assert near(own, quoted) == shown


def test_a_long_rest_is_quoted_in_part_by_both_servers() -> None:
    rest = "x" + " AND a = 1" * 20
    own = f"ACK m WHERE id {rest}"
    assert near(own, rest[:80]) == near(own, f"{rest[:77]}...") == f"'{rest[:80]}' at line 1"


def test_the_same_word_before_is_not_taken_for_the_place() -> None:
    own = "ACK m WHERE b = 1 AND b = 2 b"
    assert near(own, "b\n)") == "'b' at line 1"


@pytest.mark.parametrize("message", ["Something else", MYSQL.format("nowhere to be found", 1)])
def test_an_error_without_a_known_place_quotes_the_beginning(message: str) -> None:
    assert quoted_place(message, "UPDATE m SET a = 1") is None
    assert "near 'ACK m' at line 1" in in_own_words(message, "UPDATE m", "ACK m", "ACK", "wrong").message


def test_a_text_of_megabytes_is_not_searched() -> None:
    own = "ACK m WHERE " + "a" * TEXT_MAX
    assert "near 'ACK m WHERE aaa" in in_own_words(MYSQL.format("a)", 1), f"{own})", own, "ACK", "wrong").message


@pytest.mark.parametrize("language", ["Erreur de syntaxe près de '{}' à la ligne {}", "Fehler bei '{}' in Zeile {}"])
def test_the_language_of_the_servers_messages_does_not_matter(language: str) -> None:
    assert quoted_place(language.format("x\n)", 1), "UPDATE m WHERE (x\n)") == len("UPDATE m WHERE (")


def test_what_was_put_around_the_clients_text_is_left_out() -> None:
    own = "CREATE QUEUE q (a INT, UNIQUE KEY x)"
    sent = "CREATE TABLE q (\nid BIGINT,\na INT, UNIQUE KEY x\n,\nPRIMARY KEY (id)) COMMENT = 'x'"
    assert own[same_place(sent, sent.index(",\nPRIMARY"), own) :] == ")"
    assert own[same_place(sent, sent.index("\nPRIMARY"), own) :] == ")"
    assert own[same_place(sent, sent.index("INT, U"), own) :] == "INT, UNIQUE KEY x)"
