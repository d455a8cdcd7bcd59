"""What settings are refused together, and what no new setting may forget."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import get_args

import pytest

from proxy.server.parts import private_server
from proxy.settings import REPLACED, BadSetting, Endpoint, Settings, load

ENDPOINTS = [
    name for name, field in Settings.model_fields.items() if Endpoint in {field.annotation, *get_args(field.annotation)}
]


def test_the_addresses_of_the_settings_are_found_by_their_type() -> None:
    assert ENDPOINTS == ["listen", "admin"]
    chosen = {name: Endpoint(f"127.0.0.{at}:1") for at, name in enumerate(ENDPOINTS, 2)}
    assert load(chosen, None).endpoints == chosen


@pytest.mark.parametrize("name", ENDPOINTS)
@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0"])
def test_the_private_server_is_not_started_while_any_address_is_in_reach_of_others(
    tmp_path: Path, name: str, address: str
) -> None:
    with pytest.raises(BadSetting, match="root of the private server has no password") as refused:
        asyncio.run(private_server(load({name: address, "data_dir": tmp_path}, None)))
    assert str(refused.value).startswith(f"--{name.replace('_', '-')} {address}: other machines can reach ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "instead"), [("workers", "processes"), ("listen_statements", "streams = off")])
def test_a_setting_of_an_earlier_release_is_refused_with_what_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, instead: str
) -> None:
    assert name in REPLACED
    file, variable = tmp_path / "settings.toml", f"ACKSTREAM_{name.upper()}"
    file.write_text(f"{name} = 2\n")
    with pytest.raises(BadSetting, match=f"^{name} in .*there is no such setting any more; .*{instead}"):
        load({}, file)
    monkeypatch.setenv(variable, "2")
    with pytest.raises(BadSetting, match=f"^{variable}: there is no such setting any more; .*{instead}"):
        load({}, None)


def test_a_unix_socket_belongs_to_one_process() -> None:
    with pytest.raises(BadSetting, match="listen_socket and processes exclude each other"):
        load({"processes": "2", "listen_socket": "/tmp/a.sock"}, None)  # It is not made.


def test_each_process_needs_a_port_for_its_admin_port() -> None:
    assert load({"processes": "2", "admin": "127.0.0.1:65534"}, None).processes == 2
    with pytest.raises(BadSetting, match=r"there are no 3 ports from that of admin on \(127.0.0.1:65534\)"):
        load({"processes": "3", "admin": "127.0.0.1:65534"}, None)
