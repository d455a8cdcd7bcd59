"""Which tables can be queues, which indexes are used, and the problems of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from engine.catalog.verdict import Column, Index, IndexColumn, TableFacts, evaluate
from engine.model import TableId
from engine.queue_table import BrokenTable, GroupColumn, IdKind, QueueTable
from tests.support.stores import COMMENT


def column(name: str, data_type: str = "bigint", *, nullable: bool = False, length: int = 0, extra: str = "") -> Column:
    return Column(name, data_type, nullable, length, extra)


def index(name: str, *columns: str, unique: bool = False) -> Index:
    """`-name` descends, `name(` is a prefix."""
    parts = tuple(IndexColumn(name.strip("-("), name.startswith("-"), not name.endswith("(")) for name in columns)
    return Index(name, unique, parts)


PRIMARY = index("PRIMARY", "id", unique=True)
NEXT_UP = index("next_up", "time_acked", "priority", "time_next")
COLUMNS = {
    made.name: made
    for made in (
        column("id"),
        column("priority", "int"),
        column("epoch"),
        column("time_next", nullable=True),
        column("time_acked", nullable=True),
        column("body", "varchar", nullable=True),
    )
}


def facts(
    *changed: Column,
    without: Sequence[str] = (),
    indexes: Sequence[Index] = (PRIMARY, NEXT_UP),
    comment: str = COMMENT,
    engine: str = "InnoDB",
    by_time: bool = False,
    has_checks: bool = False,
) -> TableFacts:
    """A good table, with these columns changed or added."""
    columns = {**COLUMNS, **{new.name: new for new in changed}}
    kept = [kept for name, kept in columns.items() if name not in without]
    return TableFacts(TableId("shop", "mail"), comment, engine, kept, indexes, by_time, has_checks=has_checks)


def queue(found: TableFacts) -> QueueTable:
    verdict = evaluate(found)
    assert isinstance(verdict, QueueTable), verdict
    return verdict


def problems(found: TableFacts) -> tuple[str, ...]:
    verdict = evaluate(found)
    assert isinstance(verdict, BrokenTable), verdict
    return verdict.problems


def test_a_table_without_the_word_is_no_queue_whatever_its_columns_are() -> None:
    assert evaluate(facts(comment="mail")) is None
    assert evaluate(facts(comment="mail", without=list(COLUMNS), engine="MyISAM")) is None


def test_where_a_row_computes_something_when_it_changes_an_ack_is_not_the_same_in_any_session() -> None:
    assert queue(facts()).writes_alike
    assert queue(facts(replace(column("at", "datetime"), extra="DEFAULT_GENERATED"))).writes_alike
    assert not queue(facts(replace(column("at", "datetime"), extra="on update CURRENT_TIMESTAMP"))).writes_alike
    assert not queue(facts(replace(column("half"), extra="VIRTUAL GENERATED"))).writes_alike
    assert not queue(facts(has_checks=True)).writes_alike
    by_time = Index("z", unique=True, columns=(IndexColumn("id", False, True), IndexColumn("time_acked", False, True)))
    assert not queue(facts(by_time=True, indexes=[by_time, NEXT_UP])).writes_alike


def test_a_good_table_is_a_queue() -> None:
    found = queue(facts())
    assert (found.id_kind, found.id_index, found.scan_index) == (IdKind.INTEGER, "PRIMARY", "next_up")
    assert (found.scan_descending, found.scan_ties_by_id, found.advice) == (False, True, ())
    assert found.columns == ("id", "priority", "epoch", "time_next", "time_acked", "body")


@pytest.mark.parametrize(
    ("data_type", "kind"),
    [
        ("tinyint", IdKind.INTEGER),
        ("bigint", IdKind.INTEGER),
        ("bit", IdKind.INTEGER),
        ("year", IdKind.INTEGER),
        ("decimal", IdKind.DECIMAL),
        ("double", IdKind.FLOAT),
        ("varchar", IdKind.TEXT),
        ("varbinary", IdKind.BINARY),
        ("timestamp", IdKind.TIMESTAMP),
        ("datetime", IdKind.OTHER),
        ("uuid", IdKind.OTHER),
        ("enum", IdKind.OTHER),
    ],
)
def test_an_id_can_be_of_any_type(data_type: str, kind: IdKind) -> None:
    assert queue(facts(column("id", data_type))).id_kind is kind


def test_the_length_of_a_char_id_is_known_as_it_may_be_padded() -> None:
    assert queue(facts(column("id", "char", length=36))).id_pad_chars == 36
    assert queue(facts(column("id", "varchar", length=36))).id_pad_chars == 0


class TestPartitionedByTime:
    """Such a table cannot have a unique index on id alone."""

    def test_any_index_that_begins_with_id_will_do_a_unique_one_first(self) -> None:
        plain, unique = index("a", "id"), index("z", "id", "time_acked", unique=True)
        found = queue(facts(indexes=[plain, unique, NEXT_UP], by_time=True))
        assert (found.id_index, found.kept_by_partition) == ("z", True)
        assert queue(facts(indexes=[plain, index("b", "id", "body"), NEXT_UP], by_time=True)).id_index == "a"

    def test_it_is_advised_that_ids_are_not_kept_unique(self) -> None:
        (advice,) = queue(facts(indexes=[index("a", "id"), NEXT_UP], by_time=True)).advice
        assert "cannot keep ids unique" in advice

    def test_without_one_it_is_told_which_to_make(self) -> None:
        (problem,) = problems(facts(indexes=[index("a", "body", "id"), index("b", "id("), NEXT_UP], by_time=True))
        assert problem.startswith("id has no index: add UNIQUE KEY (id, time_acked)")


class TestDefaultColumns:
    def test_all_but_the_queues_own_and_the_invisible_ones(self) -> None:
        found = queue(facts(column("Tenant"), column("secret", extra="INVISIBLE")))
        assert found.default_columns == ("id", "body", "Tenant")
        assert "secret" in found.columns

    def test_vt_message_cols_decides_in_its_own_order_and_the_tables_spelling(self) -> None:
        found = queue(facts(column("Tenant"), comment=COMMENT + ",vt_message_cols=tenant|epoch|ID"))
        assert found.default_columns == ("Tenant", "epoch", "id")

    def test_an_unknown_one_there_is_a_problem(self) -> None:
        (problem,) = problems(facts(comment=COMMENT + ",vt_message_cols=id|nobody"))
        assert problem == "vt_message_cols names the column 'nobody', which the table does not have"


class TestProblems:
    def test_all_of_them_are_reported_at_once(self) -> None:
        found = facts(
            column("epoch", "int"), without=["id", "time_acked"], indexes=[], comment="vitess_message", engine="MyISAM"
        )
        text = str(evaluate(found))
        assert text.startswith("shop.mail cannot be used as a queue: vt_ack_wait is missing")
        for part in ("vt_cache_size is missing", "MyISAM", "column id is", "column time_acked is", "epoch is INT"):
            assert part in text

    @pytest.mark.parametrize("name", ["id", "priority", "epoch", "time_next", "time_acked"])
    def test_a_missing_column_is_named_with_its_type(self, name: str) -> None:
        (problem,) = problems(facts(without=[name]))
        assert problem.startswith(f"column {name} is missing: ")

    @pytest.mark.parametrize(
        ("changed", "part"),
        [
            (column("priority", "varchar"), "column priority is VARCHAR and has to be an integer"),
            (column("epoch", "int"), "column epoch is INT and has to be BIGINT"),
            (column("time_next", "datetime", nullable=True), "column time_next is DATETIME and has to be BIGINT"),
            (column("time_acked"), "column time_acked is NOT NULL"),
            (column("time_next"), "column time_next is NOT NULL"),
            (column("epoch", extra="STORED GENERATED"), "column epoch is generated"),
            (column("id", nullable=True), "column id may be NULL"),
        ],
    )
    def test_a_column_that_does_not_fit_is_told_with_what_would(self, changed: Column, part: str) -> None:
        (problem,) = problems(facts(changed))
        assert problem.startswith(part)

    def test_a_default_that_is_an_expression_is_no_generated_column(self) -> None:
        assert queue(facts(column("time_next", nullable=True, extra="DEFAULT_GENERATED"))).advice == ()

    @pytest.mark.parametrize(
        "indexes",
        [
            [NEXT_UP],
            [index("id", "id"), NEXT_UP],
            [index("PRIMARY", "tenant", "id", unique=True)],
            [index("PRIMARY", "id", "tenant", unique=True)],
            [index("id", "id(", unique=True)],
        ],
    )
    def test_an_id_needs_a_unique_index_of_its_own(self, indexes: list[Index]) -> None:
        (problem,) = problems(facts(indexes=indexes))
        assert problem.startswith("id is not unique: make it the primary key")

    @pytest.mark.parametrize("engine", ["MyISAM", "MEMORY", ""])
    def test_only_innodb_will_do(self, engine: str) -> None:
        (problem,) = problems(facts(engine=engine))
        assert "only InnoDB" in problem


class TestIndexes:
    def test_a_unique_index_on_id_will_do_when_it_is_not_the_primary_key(self) -> None:
        composite = index("PRIMARY", "tenant", "id", unique=True)
        found = queue(facts(indexes=[composite, index("by_id", "id", unique=True), NEXT_UP]))
        assert (found.id_index, found.scan_ties_by_id) == ("by_id", False)

    def test_names_are_compared_without_regard_to_case(self) -> None:
        found = queue(
            facts(indexes=[index("PRIMARY", "ID", unique=True), index("n", "TIME_ACKED", "Priority", "time_Next")])
        )
        assert (found.id_index, found.scan_index) == ("PRIMARY", "n")

    def test_the_scan_index_may_descend_in_time_as_vitess_has_it(self) -> None:
        found = queue(facts(indexes=[PRIMARY, index("poller_idx", "time_acked", "priority", "-time_next")]))
        assert (found.scan_index, found.scan_descending, found.scan_ties_by_id) == ("poller_idx", True, True)

    def test_further_columns_in_it_are_fine_but_decide_the_order_of_ties(self) -> None:
        found = queue(facts(indexes=[PRIMARY, index("n", "time_acked", "priority", "time_next", "tenant")]))
        assert (found.scan_index, found.scan_ties_by_id) == ("n", False)
        found = queue(facts(indexes=[PRIMARY, index("n", "time_acked", "priority", "time_next", "id")]))
        assert found.scan_ties_by_id

    def test_a_primary_key_that_descends_puts_ties_the_other_way_round(self) -> None:
        assert not queue(facts(indexes=[index("PRIMARY", "-id", unique=True), NEXT_UP])).scan_ties_by_id

    def test_of_several_scan_indexes_the_plainest_is_taken(self) -> None:
        several = [
            PRIMARY,
            index("a", "time_acked", "priority", "time_next", "tenant"),
            index("b", "time_acked", "priority", "-time_next"),
            replace(NEXT_UP, name="c"),
        ]
        assert queue(facts(indexes=several)).scan_index == "c"

    @pytest.mark.parametrize(
        "other",
        [
            index("n", "time_acked", "time_next", "priority"),
            index("n", "time_acked", "priority"),
            index("n", "priority", "time_next"),
        ],
    )
    def test_without_one_the_table_works_and_the_statement_to_make_one_is_advised(self, other: Index) -> None:
        found = queue(facts(indexes=[PRIMARY, other]))
        assert found.scan_index is None
        (warning,) = found.warnings
        assert warning.endswith("ALTER TABLE shop.mail ADD INDEX (time_acked, priority, time_next)")

    def test_a_priority_that_may_be_null_is_advised_against(self) -> None:
        (advice,) = queue(facts(column("priority", "int", nullable=True))).advice
        assert advice.startswith("priority may be NULL")


def test_a_directive_that_does_not_exist_is_a_warning_of_a_queue_and_a_problem_of_a_table_that_is_none() -> None:
    assert queue(facts()).warnings == ()
    (warning,) = queue(facts(comment=f"{COMMENT},max_attemps=3")).warnings
    assert "was max_attempts meant?" in warning
    *_, last = problems(facts(comment=COMMENT.replace("ack_wait", "ack_wiat")))
    assert "was vt_ack_wait meant?" in last


TENANT = column("tenant", "varchar", nullable=True)
REGION = column("Region", "int")
BY_TENANT_AND_REGION = index("fair", "time_acked", "priority", "tenant", "Region", "time_next")
GROUPED = f"{COMMENT},group_by=TENANT|region"


def test_a_group_has_the_columns_and_the_index_of_the_table() -> None:
    found = queue(facts(TENANT, REGION, comment=GROUPED, indexes=[PRIMARY, NEXT_UP, BY_TENANT_AND_REGION]))
    assert found.policy.group_by == ("TENANT", "region")
    assert found.group_columns == (GroupColumn("tenant", IdKind.TEXT), GroupColumn("Region", IdKind.INTEGER))
    assert found.group_index == "fair"


@pytest.mark.parametrize(
    "unfit",
    [
        index("fair", "time_acked", "priority", "Region", "tenant", "time_next"),
        index("fair", "time_acked", "tenant", "Region", "priority", "time_next"),
        index("fair", "time_acked", "priority", "tenant", "Region"),
        index("fair", "time_acked", "priority", "tenant(", "Region", "time_next"),
        index("fair", "time_acked", "priority", "-tenant", "Region", "time_next"),
        index("fair", "time_acked", "priority", "tenant", "Region", "-time_next"),
        index("fair", "time_acked", "priority", "tenant", "Region", "time_next", "body"),
    ],
)
def test_another_index_is_no_index_of_groups(unfit: Index) -> None:
    found = queue(facts(TENANT, REGION, comment=GROUPED, indexes=[PRIMARY, NEXT_UP, unfit]))
    assert found.group_index is None
    assert found.group_columns


LEASE = column("lease", "bigint", nullable=True)
IN_FLIGHT = index("held", "time_acked", "lease", "time_next")
BY_GROUP = index("held_by_group", "time_acked", "lease", "time_next", "tenant", "Region")
GROUP_LIMITED = f"{GROUPED},lease=lease,group_limit=3"


@pytest.mark.parametrize(
    ("indexes", "counted_by"),
    [([], None), ([IN_FLIGHT], "held"), ([IN_FLIGHT, BY_GROUP], "held_by_group"), ([BY_GROUP], "held_by_group")],
)
def test_a_limit_of_groups_holds_over_all_proxies_with_an_index_on_the_lease(
    indexes: list[Index], counted_by: str | None
) -> None:
    found = queue(facts(TENANT, REGION, LEASE, comment=GROUP_LIMITED, indexes=[PRIMARY, NEXT_UP, *indexes]))
    assert (found.policy.group_limit, found.policy.paused) == (3, counted_by is None)
    assert found.lease_index == counted_by
    remedy = "nothing is delivered: ALTER QUEUE shop.mail GROUP_LIMIT = 3 adds what is missing"
    assert any(warning.startswith(remedy) for warning in found.warnings) is (counted_by is None)


def test_a_limit_on_what_is_in_flight_without_a_lease_column_delivers_nothing() -> None:
    found = queue(facts(comment=f"{COMMENT},max_in_flight=2"))
    assert found.policy.paused
    (warning,) = found.warnings
    assert warning == (
        "nothing is delivered: ALTER QUEUE shop.mail MAX_IN_FLIGHT = 2 adds what is missing"
        " (a lease column and an index)"
    )


BY_ORDER = index("ordered", "time_acked", "tenant", "Region", "id")
ORDERED = f"{GROUPED},lease=lease,group_order=STRICT"


@pytest.mark.parametrize("indexes", [[], [BY_GROUP], [BY_ORDER], [IN_FLIGHT, BY_ORDER], [BY_GROUP, BY_ORDER]])
def test_a_queue_in_strict_order_delivers_nothing_without_its_indexes(indexes: list[Index]) -> None:
    found = queue(facts(TENANT, REGION, LEASE, comment=ORDERED, indexes=[PRIMARY, NEXT_UP, *indexes]))
    complete = len(indexes) == 2
    assert found.policy.group_strict
    assert (found.policy.group_most, found.policy.paused) == (1, not complete)
    remedy = "nothing is delivered: ALTER QUEUE shop.mail GROUP_ORDER = STRICT adds what is missing"
    assert any(warning.startswith(remedy) for warning in found.warnings) is not complete
    assert not complete or found.order_index == "ordered"


def test_strict_order_needs_groups_and_excludes_a_limit() -> None:
    (found,) = problems(facts(comment=f"{COMMENT},group_order=strict"))
    assert found.startswith("group_order needs group_by")


def test_a_limit_of_groups_without_groups_is_a_problem() -> None:
    (found,) = problems(facts(comment=f"{COMMENT},group_limit=2"))
    assert found.startswith("group_limit needs group_by")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nobody", "group_by names the column 'nobody', which the table does not have"),
        ("priority", "group_by names the column 'priority', which has another purpose"),
        ("kind", "group_by names the column 'kind', which is ENUM"),
        ("tenant|tenant", "group_by='tenant|tenant' is not a list without repetitions"),
    ],
)
def test_a_group_of_unfit_columns_is_a_problem(name: str, problem: str) -> None:
    (found,) = problems(facts(TENANT, column("kind", "enum"), comment=f"{COMMENT},group_by={name}"))
    assert found.startswith(problem)


NEEDS = column("needs", "varchar")
NEEDING = f"{COMMENT},lease=lease,semaphores=NEEDS"
BY_NEEDS = index("by_needs", "time_acked", "priority", "needs", "time_next", "id")


def test_a_column_of_semaphores_is_the_message_group() -> None:
    counted = index("by_lease", "time_acked", "lease", "time_next", "needs")
    found = queue(facts(NEEDS, LEASE, comment=NEEDING, indexes=[PRIMARY, NEXT_UP, BY_NEEDS, counted]))
    assert found.policy.semaphores == "NEEDS"
    assert not found.policy.paused
    assert found.group_columns == (GroupColumn("needs", IdKind.TEXT),)
    assert (found.group_index, found.lease_index) == ("by_needs", "by_lease")
    assert found.warnings == ()


def test_semaphores_without_an_index_deliver_nothing() -> None:
    found = queue(facts(NEEDS, LEASE, comment=NEEDING, indexes=[PRIMARY, NEXT_UP, BY_NEEDS]))
    assert found.policy.paused
    (warning,) = found.warnings
    assert "nothing is delivered: ALTER QUEUE shop.mail SEMAPHORES = NEEDS" in warning


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nobody", "semaphores=nobody names a column that the table does not have"),
        ("priority", "semaphores=priority names a column with another purpose"),
        ("kind", "semaphores=kind names a column of another type: it has to be CHAR or VARCHAR"),
        ("needs,group_by=Needs", "semaphores and group_by name the same column"),
        ("needs,group_by=kind,group_limit=2", "semaphores and group_limit cannot be combined"),
        ("needs,group_by=kind,group_rate=2", "semaphores and group_rate cannot be combined"),
        ("needs,group_by=kind,group_order=strict", "semaphores and group_order cannot be combined"),
    ],
)
def test_a_column_that_cannot_name_semaphores(name: str, problem: str) -> None:
    found = problems(facts(NEEDS, column("kind", "enum"), comment=f"{COMMENT},semaphores={name}"))
    assert found[0].startswith(problem)
