"""Random conditions, written in every way that a client may write them and that sql_mode affects."""

from __future__ import annotations

from hypothesis import strategies as st

from sqlrewrite.lexicon import SqlMode

CHARACTERS = "aBß中'\"\\%_|"
"""Of which strings consist: letters of one, two and three bytes, and all that quotes and LIKE care about."""

modes = st.builds(SqlMode, st.booleans(), st.booleans(), st.booleans(), st.booleans())

texts = st.text(CHARACTERS, max_size=4)


def quoted(text: str, mode: SqlMode, mark: str = "'") -> str:
    """A string as a client with this mode writes it."""
    escaped = text if mode.no_backslash_escapes else text.replace("\\", "\\\\")
    return mark + escaped.replace(mark, mark * 2) + mark


def strings(mode: SqlMode) -> st.SearchStrategy[str]:
    """Strings as written, now and then in two pieces or with backslashes as they come."""
    marks = st.sampled_from(["'"] if mode.ansi_quotes else ["'", '"'])
    plain = st.builds(lambda text, mark: quoted(text, mode, mark), texts, marks)
    pieces = st.lists(plain, min_size=1, max_size=2).map(" ".join)
    if mode.no_backslash_escapes:
        return pieces
    # A backslash before whatever comes: the server leaves some away and keeps others.
    escaped = st.lists(st.sampled_from(["\\%", "\\_", "\\a", "\\'", "\\\\", "\\b", "%", "_", "b", "''"]), max_size=4)
    return st.one_of(pieces, escaped.map(lambda parts: f"'{''.join(parts)}'"))


numbers = st.one_of(
    st.integers(-3, 3).map(str),
    st.sampled_from(["1.5", ".5", "-0.5", "1e0", "15e-1", "+2", "0x1", "b'10'", "TRUE", "FALSE", "NULL"]),
)
moments = st.sampled_from(
    ["DATE '2026-01-02'", "TIMESTAMP '2026-01-02 03:04:05'", "timestamp'2026-1-2 3:4:5.5'", "'2026-01-02'", "NULL"]
)


def conditions(mode: SqlMode) -> st.SearchStrategy[str]:
    """Conditions on the columns number, word and moment, as written."""
    either = st.one_of(
        _comparisons("number", numbers), _comparisons("word", strings(mode)), _comparisons("moment", moments)
    )
    patterns = st.text("a%_|\\", max_size=3).map(lambda text: quoted(text, mode))
    likes = st.builds(
        lambda negated, pattern, escape: f"word {negated}LIKE {pattern}{escape}",
        st.sampled_from(["", "NOT "]),
        st.one_of(patterns, strings(mode)),
        st.sampled_from(["", "", " ESCAPE '|'", " escape 'a'"]),
    )
    return st.recursive(st.one_of(either, likes, likes), lambda inner: _joined(inner, mode), max_leaves=8)


def _comparisons(column: str, constants: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    columns = st.sampled_from([column, f"`{column}`", column.upper(), f"t.{column}"])
    operators = st.sampled_from(["=", "<=>", "<>", "!=", "<", "<=", ">", ">="])
    nots = st.sampled_from(["", "NOT ", "not\n"])
    return st.one_of(
        st.builds("{} {} {}".format, columns, operators, constants),
        st.builds("{} {} {}".format, constants, operators, columns),
        st.builds("{} {}BETWEEN {} AND {}".format, columns, nots, constants, constants),
        st.builds(
            lambda left, negated, among: f"{left} {negated}IN ({', '.join(among)})",
            columns,
            nots,
            st.lists(constants, min_size=1, max_size=3),
        ),
        st.builds("{} IS {}{}".format, columns, nots, st.sampled_from(["NULL", "TRUE", "false"])),
    )


def _joined(inner: st.SearchStrategy[str], mode: SqlMode) -> st.SearchStrategy[str]:
    operators = st.sampled_from([" AND ", " OR ", " XOR ", " && ", "\nand /* x */ "])
    negations = ["NOT ({})", "!({})", "NOT NOT ({})"] if mode.high_not_precedence else ["NOT {}", "!({})", "NOT NOT {}"]
    return st.one_of(
        st.builds("{}{}{}".format, inner, operators, inner),
        inner.map("({})".format),
        st.builds(lambda form, condition: form.format(condition), st.sampled_from(negations), inner),
    )
