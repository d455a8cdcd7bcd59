"""Failover where the connections to the servers have more to them: TLS with verified certificates, and the PROXY
protocol. The new primary gets the same as the one before."""

from __future__ import annotations

import pymysql
import pytest

from tests.support.certificates import certificates, make_certificates
from tests.support.failover import client_of, url
from tests.support.proxies import running_proxy
from tests.support.queues import create_queue, enqueue, rows, run
from tests.support.replicas import primary_and_replica, promote, run_all
from tests.support.servers import MARIADBS, connect

pytestmark = pytest.mark.either_server


@pytest.fixture
def pair(server_name):
    with primary_and_replica(server_name) as pair:
        with connect(pair[0]) as root:
            run(root, "CREATE DATABASE shop")
            root.select_db("shop")
            create_queue(root, "m")
        yield pair


def works(client) -> None:
    """A message goes in and comes out."""
    enqueue(client, "m", "a")
    ((key,),) = rows(client, "STREAM id FROM m LIMIT 1 WAIT 20")
    assert run(client, f"ACK FROM m WHERE id = {key}") == 1


def test_the_certificate_of_each_server_is_verified(pair, tmp_path) -> None:
    primary, replica = pair
    options = ["--backend", url(replica), "--backend-tls", "always", "--backend-ca", str(certificates().ca)]
    with running_proxy(primary, tmp_path / "log", options) as proxy:
        for server in (primary, replica):
            with client_of(proxy, server) as client:
                assert rows(client, "SHOW STATUS LIKE 'Ssl_cipher'")[0][1]
                works(client)
                if server is primary:
                    primary.kill()
                    promote(replica)


def test_servers_whose_certificates_another_authority_has_signed_are_not_used(pair, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ACKSTREAM_BACKEND_WAIT_S", "1")
    primary, replica = pair
    options = ["--backend", url(replica), "--backend-ca", str(make_certificates(tmp_path / "other").ca)]
    with (
        pytest.raises(AssertionError, match="certificate verify failed"),
        running_proxy(primary, tmp_path / "log", options),
    ):
        pass


@pytest.mark.parametrize("server_name", MARIADBS, indirect=True, scope="session")
def test_each_server_gets_the_clients_address(pair, tmp_path) -> None:
    """MySQL does not have the PROXY protocol."""
    primary, replica = pair
    for server in pair:
        run_all(server, "SET GLOBAL proxy_protocol_networks = '127.0.0.1'")
    run_all(primary, "CREATE USER worker@127.0.0.2", "GRANT ALL ON shop.* TO worker@127.0.0.2")
    with running_proxy(primary, tmp_path / "log", ["--backend", url(replica), "--proxy-protocol", "on"]) as proxy:
        for server in (primary, replica):
            client_of(proxy, server).close()
            with proxy.connect(user="worker", bind_address="127.0.0.2", database="shop") as client:
                assert rows(client, "SELECT CURRENT_USER(), @@port") == [("worker@127.0.0.2", server.port)]
                works(client)
            with pytest.raises(pymysql.MySQLError, match=r"1045|Access denied"):
                proxy.connect(user="worker", bind_address="127.0.0.1")
            if server is primary:
                primary.kill()
                promote(replica)
