"""The alert rules and the dashboard of docker/: valid, made of metrics that exist, and with values from a proxy."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench.processes import free_port
from proxy.embedded.child_process import ChildProcess
from proxy.embedded.server import EmbeddedServer
from tests.support.proxies import RunningProxy
from tests.support.queues import create_queue, rows, run
from tests.support.servers import cache_dir
from tests.support.waiting import eventually

REPOSITORY = Path(__file__).parents[2]
DOCKER = REPOSITORY / "docker"
METRIC = re.compile(r"\b(?:ackstream|process)_[a-z_]+[a-z]\b")
HISTOGRAM_ENDS = ("_bucket", "_sum", "_count")
PROGRAMS = cache_dir() / "prometheus" / "usr" / "bin"
PROMTOOL = PROGRAMS / "promtool"
SCRAPED = """
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: ackstream
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""

FIRING = """
rule_files: [{rules}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - series: 'ackstream_queue_oldest_ready_age_seconds{{db="shop", queue="m", instance="a"}}'
        values: '0+60x60'
      - series: 'ackstream_queue_ready{{db="shop", queue="m", instance="a"}}'
        values: '5x60'
      - series: 'ackstream_queue_held_back{{db="shop", queue="m", reason="no_consumer", instance="a"}}'
        values: '1x60'
      - series: 'ackstream_queue_dead{{db="shop", queue="m", instance="a"}}'
        values: '0x30 3x30'
      - series: 'ackstream_server_reachable{{instance="a"}}'
        values: '1x10 0x50'
      - series: 'ackstream_binlog_following{{instance="a"}}'
        values: '1x10 0x50'
      - series: 'ackstream_queue_oldest_ready_age_seconds{{db="shop", queue="well", instance="a"}}'
        values: '1x60'
      - series: 'ackstream_queue_ready{{db="shop", queue="well", instance="a"}}'
        values: '5x60'
      - series: 'ackstream_queue_held_back{{db="shop", queue="well", reason="no_consumer", instance="a"}}'
        values: '1x60'
      - series: 'ackstream_queue_held_back{{db="shop", queue="well", reason="no_consumer", instance="b"}}'
        values: '0x60'
      - series: 'ackstream_server_stalled_seconds{{instance="a"}}'
        values: '0x10 60+60x50'
      - series: 'ackstream_certificate_expires_seconds{{instance="a"}}'
        values: '1000000x60'
      - series: 'ackstream_certificate_expires_seconds{{instance="b"}}'
        values: '2000000x60'
      - series: 'ackstream_queue_broken{{db="shop", queue="gone", instance="a"}}'
        values: '1x60'
      - series: 'ackstream_server_read_only{{instance="a"}}'
        values: '0x30 1x30'
      - series: 'ackstream_connections_exhausted{{instance="a"}}'
        values: '0x34 1x30'
      - series: 'ackstream_queue_problem{{db="shop", queue="m", kind="message.repeated", instance="a"}}'
        values: '1x60'
      - series: 'ackstream_queue_problem{{db="shop", queue="well", kind="message.expired", instance="a"}}'
        values: '1x60'
    promql_expr_test:
      - expr: count by (alertname, queue) (ALERTS{{alertstate="firing"}})
        eval_time: 35m
        exp_samples:
          - {{labels: '{{alertname="AckstreamOldestReadyGrows", queue="m"}}', value: 1}}
          - {{labels: '{{alertname="AckstreamNoConsumer", queue="m"}}', value: 1}}
          - {{labels: '{{alertname="AckstreamDeadLetters", queue="m"}}', value: 1}}
          - {{labels: '{{alertname="AckstreamQueueBroken", queue="gone"}}', value: 1}}
          - {{labels: '{{alertname="AckstreamNoServer"}}', value: 1}}
          - {{labels: '{{alertname="AckstreamServerReadOnly"}}', value: 1}}
          - {{labels: '{{alertname="AckstreamConnectionsExhausted"}}', value: 1}}
          - {{labels: '{{alertname="AckstreamQueueProblem", queue="m"}}', value: 1}}
          - {{labels: '{{alertname="AckstreamCertificateExpires"}}', value: 1}}
          - {{labels: '{{alertname="AckstreamServerStalls"}}', value: 1}}
          - {{labels: '{{alertname="AckstreamLogNotFollowed"}}', value: 1}}
"""


def known_metrics() -> set[str]:
    page = (REPOSITORY / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", page, re.MULTILINE)
    histograms = [name for name, kind in rows if kind == "histogram"]
    return {name for name, _ in rows} | {name + end for name in histograms for end in HISTOGRAM_ENDS}


def panels() -> Iterator[dict[str, Any]]:
    for panel in json.loads((DOCKER / "grafana" / "ackstream.json").read_text())["panels"]:
        if panel["type"] != "row":
            yield panel


def promtool(*arguments: object) -> str:
    if not PROMTOOL.exists():
        pytest.skip("promtool is missing: scripts/prepare monitoring")
    done = subprocess.run([PROMTOOL, *map(str, arguments)], check=False, capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_rules_and_dashboard_name_metrics_that_exist() -> None:
    rules = (DOCKER / "prometheus" / "alerts.yaml").read_text()
    expressions = [target["expr"] for panel in panels() for target in panel["targets"]]
    named = {name for text in (rules, *expressions) for name in METRIC.findall(text)}
    assert len(named) > 25
    assert named - known_metrics() == set()


def test_whatever_an_alert_is_about_is_on_the_dashboard() -> None:
    """Who is woken looks there first."""
    alerts = METRIC.findall((DOCKER / "prometheus" / "alerts.yaml").read_text())
    shown = {name for panel in panels() for target in panel["targets"] for name in METRIC.findall(target["expr"])}
    assert set(alerts) - shown == set()


def test_the_dashboard_has_what_grafana_needs_to_load_it() -> None:
    dashboard = json.loads((DOCKER / "grafana" / "ackstream.json").read_text())
    assert {"uid", "title", "schemaVersion", "panels", "templating", "time"} <= dashboard.keys()
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    for panel in panels():
        assert panel["title"]
        assert panel["description"], panel["title"]
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    used = {
        name for panel in panels() for target in panel["targets"] for name in re.findall(r"\$(\w+)", target["expr"])
    }
    assert used - {"__rate_interval"} <= variables


@pytest.mark.deploy
def test_prometheus_accepts_the_configuration_and_each_expression_of_the_dashboard(tmp_path: Path) -> None:
    # The token's file is in the container alone.
    assert promtool("check", "config", "--syntax-only", DOCKER / "prometheus" / "prometheus.yaml") == ""
    expressions = [target["expr"] for panel in panels() for target in panel["targets"]]
    quoted = [json.dumps(text.replace("$__rate_interval", "1m")) for text in expressions]
    rules = "".join(f"      - {{record: 'r:{at}', expr: {text}}}\n" for at, text in enumerate(quoted))
    file = tmp_path / "rules.yaml"
    file.write_text(f"groups:\n  - name: dashboard\n    rules:\n{rules}")
    assert promtool("check", "rules", file) == ""


@pytest.mark.deploy
def test_the_alerts_fire_for_what_they_are_for(tmp_path: Path) -> None:
    file = tmp_path / "test.yaml"
    file.write_text(FIRING.format(rules=DOCKER / "prometheus" / "alerts.yaml"))
    assert promtool("test", "rules", file) == ""


@contextlib.contextmanager
def prometheus(proxy: RunningProxy, folder: Path) -> Iterator[int]:
    """A Prometheus that scrapes the proxy each second, and its port."""
    config, port = folder / "prometheus.yaml", free_port()
    config.write_text(SCRAPED.format(port=proxy.admin_port))
    command = [
        str(PROGRAMS / "prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    process = ChildProcess(command, output=folder / "prometheus.log")
    try:
        eventually(partial(_is_ready, port), timeout_s=30)
        yield port
    finally:
        process.terminate()
        process.wait(20)


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready"):
            return True
    except OSError:
        return False


def series(port: int, expression: str) -> list[Any]:
    """What Prometheus returns for an expression of the dashboard."""
    expression = expression.replace("$__rate_interval", "10s").replace("$db", ".*").replace("$queue", ".*")
    query = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{query}") as answer:
        found: list[Any] = json.load(answer)["data"]["result"]
    return found


@pytest.mark.deploy
@pytest.mark.timeout(180)
def test_each_panel_of_the_dashboard_shows_what_a_running_proxy_reports(
    private_server: EmbeddedServer, tmp_path: Path
) -> None:
    """Messages of one queue are acknowledged, given back and dead, and those of another have no consumer. A third one
    has no index, and a fourth is broken."""
    proxy = RunningProxy(private_server, tmp_path / "log", ["--log-level", "warning"])
    with contextlib.ExitStack() as stack:
        stack.callback(proxy.stop)
        proxy.start()
        client = stack.enter_context(proxy.connect())
        run(client, "CREATE DATABASE shop")
        client.select_db("shop")
        run(client, "CREATE QUEUE m (body TEXT) MAX_ATTEMPTS = 2 DEAD_LETTER = m_dead MIN_BACKOFF = 0.1")
        run(client, "CREATE QUEUE idle (body TEXT)")
        run(client, "INSERT INTO idle (body) VALUES ('a')")
        create_queue(client, "slow")
        run(client, "ALTER TABLE slow DROP INDEX next_idx")
        run(client, "CREATE TABLE broken (id BIGINT PRIMARY KEY) COMMENT 'vitess_message'")
        stop = threading.Event()

        def work() -> None:
            with proxy.connect(database="shop") as worker:
                while not stop.wait(0.1):
                    run(worker, "INSERT INTO m (body) VALUES ('a'), ('b'), ('c')")
                    for number, (key,) in enumerate(rows(worker, "STREAM id FROM m LIMIT 3 NOWAIT")):
                        run(worker, f"{'ACK' if number else 'NACK'} m WHERE id = {key}")

        worker = threading.Thread(target=work)
        worker.start()
        stack.callback(worker.join)
        stack.callback(stop.set)
        port = stack.enter_context(prometheus(proxy, tmp_path))
        for panel in panels():
            for target in panel["targets"]:
                eventually(partial(series, port, target["expr"]), timeout_s=60, what=target["expr"])
