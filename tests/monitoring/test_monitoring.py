"""The files of examples/monitoring in a real Prometheus, which scrapes a real space with a stuck message."""

import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

import spool
import xa
from tests.at_once import AT_ONCE
from tests.clocks import MovedClock, timed
from tests.ports import free_port
from tests.scripts.conftest import killed_python, prepare
from tests.scripts.exporters import fail_a_task, report_everything, serving
from xaspool_scripts.watch.prometheus import METRICS

ROOT = Path(__file__).parents[2]
FILES = ROOT / "examples" / "monitoring"
DASHBOARD = json.loads((FILES / "grafana.json").read_text())
VARIABLES = {"$__rate_interval": "5m", "$space": ".*", "$queue": ".*"}
SECONDS = 90  # until Prometheus has started, or an alert fires

needs_prometheus = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")),
    reason="needs the programs prometheus and promtool (Debian: apt install prometheus)",
)


def promtool(*arguments: object, directory: Path = FILES) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["promtool", *map(str, arguments)], cwd=directory, capture_output=True, text=True, check=False, timeout=120
    )


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    """Return the dashboard's expressions, with values for the variables."""
    found = [target["expr"] for panel in panels() for target in panel["targets"]]
    for name, value in VARIABLES.items():
        found = [expression.replace(name, value) for expression in found]
    return found


def alerts() -> list[str]:
    return re.findall(r"- alert: (\w+)", (FILES / "alerts.yml").read_text())


# -- without a server --------------------------------------------------------------------------------------------------


@needs_prometheus
@pytest.mark.parametrize(
    "arguments",
    [("check", "config", "prometheus.yml"), ("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")],
    ids=" ".join,
)
def test_promtool_accepts_the_files(arguments: tuple[str, ...]) -> None:
    done = promtool(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.every(5)
@needs_prometheus
@pytest.mark.parametrize(
    ("right", "wrong"),
    [("> 300", "> 3000"), ('"in_doubt"', '"claimed"'), ("== 1", "== 2"), ("> 0.5", "> 0.9"), ("unless on", "and on")],
)
def test_the_cases_of_the_alerts_notice_a_wrong_rule(tmp_path: Path, right: str, wrong: str) -> None:
    shutil.copytree(FILES, tmp_path, dirs_exist_ok=True)
    rules = (FILES / "alerts.yml").read_text()
    assert right in rules
    (tmp_path / "alerts.yml").write_text(rules.replace(right, wrong, 1))
    assert promtool("test", "rules", "alerts_test.yml", directory=tmp_path).returncode != 0


def test_every_alert_has_a_case_that_fires_and_a_row_in_the_page() -> None:
    cases, page = (FILES / "alerts_test.yml").read_text(), (FILES / "README.md").read_text()
    assert len(alerts()) >= 9
    for alert in alerts():
        assert re.search(rf"alertname: {alert}\n\s+exp_alerts:\n\s+- exp_labels", cases), alert
        assert f"`{alert}`" in page, alert


def test_every_metric_of_the_files_is_in_the_table() -> None:
    known = {metric.name for metric in METRICS if metric.kind != "histogram"}
    known |= {
        f"{metric.name}_{end}" for metric in METRICS if metric.kind == "histogram" for end in ("bucket", "count", "sum")
    }
    labels = {"space", "job", "instance", "le", *(label for metric in METRICS for label in metric.labels)}
    for file in FILES.iterdir():
        text = file.read_text()
        assert set(re.findall(r"\bxaspool_\w+", text)) <= known, file.name
        for grouping in re.findall(r"\b(?:by|on) ?\(([\w, ]+)\)", text):
            assert set(re.split(r",\s*", grouping)) <= labels, (file.name, grouping)


def test_the_dashboard_is_complete() -> None:
    assert {"title", "uid", "schemaVersion", "templating", "panels", "time"} <= DASHBOARD.keys()
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert variables.keys() == {"datasource", "space", "queue"}
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    for panel in panels():
        assert panel["title"]
        assert panel["type"] in ("stat", "timeseries", "table")
        for source in (panel, *panel["targets"]):
            assert source["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    for one, other in combinations([panel["gridPos"] for panel in DASHBOARD["panels"]], 2):
        assert one["x"] + one["w"] <= 24
        assert (
            one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        ), (one, other)  # fmt: skip


def test_the_dashboard_shows_every_metric_but_those_about_the_metrics() -> None:
    shown = "".join(expressions())
    about_metrics = {
        "xaspool_build_info", "xaspool_collected_timestamp_seconds", "xaspool_collection_duration_seconds",
        "xaspool_recovery_duration_seconds", "xaspool_omitted_label_sets",
    }  # fmt: skip
    assert {metric.name for metric in METRICS if not re.search(rf"\b{metric.name}", shown)} == about_metrics


# -- with a server -----------------------------------------------------------------------------------------------------


@dataclass
class Prometheus:
    """A running Prometheus."""

    address: str
    log: Path

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of the HTTP API."""
        url = f"{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=30) as response:
            answer = json.load(response)
        assert answer["status"] == "success", answer
        return answer["data"]

    def until(self, found: Callable[[], Any]) -> Any:
        """Return the first true result of a function."""
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                if result := found():
                    return result
            except urllib.error.URLError as error:
                if isinstance(error, urllib.error.HTTPError) and error.code != HTTPStatus.SERVICE_UNAVAILABLE:
                    raise AssertionError(error.read()) from error
                # otherwise it has not started yet
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A space that has everything, and a message that has waited for ten minutes."""
    path = tmp_path_factory.mktemp("monitoring") / "space"
    with spool.create(path, defaults=AT_ONCE) as made:
        made.create_queue("errors")
        made.create_queue("orders", error_queue="errors", retries=1)
    with spool.open(timed(path, MovedClock(later=-600.0))) as earlier:
        earlier.put("orders", b"stuck")
        earlier.put("orders", b"held")
    prepare(path, xa.Xid(7, b"g", b"b"))
    killed_python(
        "import spool, sys\nspace = spool.open(sys.argv[1])\nspace.transaction().__enter__().get('orders')", path
    )
    with spool.open(path) as used:
        used.engine.register_subscription("seen", ("orders",), 3600.0)
        report_everything(used.engine.meters)
        fail_a_task(used)
        with used.transaction() as transaction:
            transaction.get("orders")
            yield path


@pytest.fixture(scope="module")
def prometheus(space: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus with the files of the example. Only the target, the intervals and ``for`` differ."""
    directory = tmp_path_factory.mktemp("prometheus")
    address, log = f"127.0.0.1:{free_port()}", directory / "log"
    with serving(space) as served:
        target = served.address.split("/")[2]
        config = (FILES / "prometheus.yml").read_text().replace("15s", "1s").replace("127.0.0.1:8814", target)
        assert target in config
        (directory / "prometheus.yml").write_text(config)
        rules = re.sub(r"for: \d+m", "for: 0s", (FILES / "alerts.yml").read_text())
        (directory / "alerts.yml").write_text(rules)
        command = [
            "prometheus", f"--config.file={directory / 'prometheus.yml'}", f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address={address}", "--scrape.discovery-reload-interval=100ms",
        ]  # fmt: skip
        with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
            try:
                yield Prometheus(f"http://{address}", log)
            finally:
                process.terminate()
                process.wait(60)


@pytest.mark.slow
@needs_prometheus
def test_the_alert_of_a_stuck_queue_fires(prometheus: Prometheus, space: Path) -> None:
    def firing() -> dict[str, dict[str, str]]:
        found = prometheus.get("alerts")["alerts"]
        return {alert["labels"]["alertname"]: alert["labels"] for alert in found if alert["state"] == "firing"}

    prometheus.until(lambda: "XaspoolQueueStuck" in firing())
    labels = firing()["XaspoolQueueStuck"]
    assert (labels["queue"], labels["space"], labels["severity"]) == ("orders", str(space), "critical")
    prometheus.until(lambda: "XaspoolRouteDown" in firing())
    assert not firing().keys() & {"XaspoolSpaceStopped", "XaspoolMetricsAbsent", "XaspoolDamage", "XaspoolMetricsOld"}


@needs_prometheus
def test_prometheus_accepts_every_scraped_sample(prometheus: Prometheus) -> None:
    def scraped() -> Any:
        targets = prometheus.get("targets")["activeTargets"]  # (none, until Prometheus has read its configuration)
        return next((target for target in targets if target["health"] != "unknown"), None)

    assert prometheus.until(scraped)["health"] == "up", scraped()
    types = prometheus.until(lambda: prometheus.get("metadata"))
    for metric in METRICS:
        name = metric.name.removesuffix("_total") if metric.name not in types else metric.name
        [told] = types[name]
        assert (told["type"], told["help"]) == (metric.kind, metric.help.replace("`", "")), metric.name


@needs_prometheus
def test_prometheus_accepts_every_expression_of_the_dashboard(prometheus: Prometheus) -> None:
    """Each expression also has a result, because the space has everything."""

    def result(expression: str) -> Any:
        return prometheus.get("query", query=expression)["result"]

    assert len(expressions()) >= 30
    for expression in expressions():
        prometheus.until(partial(result, expression))


@needs_prometheus
def test_prometheus_has_values_for_the_variables_of_the_dashboard(prometheus: Prometheus, space: Path) -> None:
    for variable in DASHBOARD["templating"]["list"][1:]:
        [(metric, label)] = re.findall(r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", variable["query"]["query"])
        found = prometheus.until(partial(prometheus.get, "series", **{"match[]": metric}))
        assert {series[label] for series in found} == {"space": {str(space)}, "queue": {"orders", "errors", "labels"}}[
            label
        ]
