"""Which of the tests' proxies may begin as a fork."""

from __future__ import annotations

import pytest

from tests.support.prepared import may_fork
from tests.support.proxies import environment


@pytest.mark.parametrize("name", ["LD_PRELOAD", "MALLOC_TRIM_THRESHOLD_", "PATH"])
def test_variables_that_a_program_reads_when_it_begins_need_a_new_process(name: str) -> None:
    with environment(**{name: "other"}):
        assert not may_fork()


def test_the_proxy_s_own_settings_do_not() -> None:
    with environment(ACKSTREAM_LOG_FORMAT="json"):
        assert may_fork()
