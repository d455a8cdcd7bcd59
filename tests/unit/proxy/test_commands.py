"""The command line: what is shown of each command."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from proxy.__main__ import COMMANDS, main


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_each_command_has_its_examples_on_lines_of_their_own(command: str) -> None:
    lines = CliRunner().invoke(main, [command, "--help"]).output.splitlines()
    assert not any("\\b" in line for line in lines)
    assert not any("Examples:" in line and line.strip() != "Examples:" for line in lines)


@pytest.mark.parametrize(("typed", "meant"), [("sevre", "serve"), ("queue", "enqueue"), ("tops", "top")])
def test_the_error_about_a_wrong_command_names_the_nearest_one(typed: str, meant: str) -> None:
    result = CliRunner().invoke(main, [typed])
    assert result.exit_code == 2
    assert f"No such command '{typed}'. Did you mean '{meant}'?" in result.output


def test_a_command_like_no_other_has_no_nearest_one() -> None:
    result = CliRunner().invoke(main, ["x"])
    assert result.exit_code == 2
    assert "Did you mean" not in result.output
