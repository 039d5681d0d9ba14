"""A healthy space is healthy an hour later, for each view and for the alerts of examples/monitoring."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import spool
from spool.watch.health import troubles
from tests.clocks import MovedClock, timed
from tests.scripts.exporters import parsed
from xaspool_console import troubles as console
from xaspool_console.samples import Samples
from xaspool_scripts.watch.prometheus import Collection, text_of
from xaspool_scripts.watch.top.model import Model, sampled
from xaspool_scripts.watch.top.queue_rows import Sample
from xaspool_scripts.watch.top.view import plain_picture

ALERTS = Path(__file__).parents[2] / "examples" / "monitoring" / "alerts.yml"
HOUR = 3_600.0


def expect_healthy_an_hour_later(path: str, directory: Path, states: set[str]) -> None:
    """No view of a space has a finding now or in an hour, and no alert fires. ``states``: the state queues.

    The test is skipped after the other checks if the program promtool is missing.
    """
    now, later = (_metrics(path, seconds) for seconds in (0.0, HOUR))
    assert {name for name, role in later.roles.items() if role == "state"} == states
    assert any((later.queues[name].oldest_age or 0.0) >= HOUR for name in states), "no state queue has a message"
    state = sampled(Model(width=200), Sample(now, 0.0), now.at)
    for moment, metrics in ((0.0, now), (HOUR, later)):
        assert troubles(metrics, metrics.at, {}) == []
        assert console.findings(Samples(lambda given=metrics: given).snapshot()) == []  # type: ignore[misc]
        found = parsed(text_of(Collection(path, metrics)))
        assert not any(found["xaspool_troubles"].values())
        state = sampled(state, Sample(metrics, moment), metrics.at)
        assert "!" not in plain_picture(state)
    assert {row.name for row in state.rows[-len(states) :]} == states
    _expect_no_alert(now, later, directory)


def _metrics(path: str, seconds: float) -> spool.SpaceMetrics:
    with spool.open(timed(path, MovedClock(later=seconds))) as space:
        return replace(space.metrics(), free_bytes=10**12, free_inodes=10**9)  # (not of the machine of the test)


def _expect_no_alert(now: spool.SpaceMetrics, later: spool.SpaceMetrics, directory: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("needs the program promtool (Debian: apt install prometheus)")
    names = re.findall(r"- alert: (\w+)", ALERTS.read_text())
    tests = {
        "rule_files": [str(ALERTS)],
        "evaluation_interval": "1m",
        "tests": [{
            "interval": "1m",
            "input_series": [{"series": 'up{job="xaspool", instance="a"}', "values": "1x80"}, *_series(now, later)],
            "alert_rule_test": [{"eval_time": at, "alertname": name} for at in ("0m", "1h20m") for name in names],
        }],
    }  # fmt: skip
    (directory / "healthy.yml").write_text(json.dumps(tests))  # (JSON is YAML)
    done = subprocess.run(
        ["promtool", "test", "rules", "healthy.yml"], cwd=directory, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _series(now: spool.SpaceMetrics, later: spool.SpaceMetrics) -> Iterator[dict[str, str]]:
    """Yield the scraped series: for an hour the values of now, then those of later."""
    before, after = (parsed(text_of(Collection("/s", metrics))) for metrics in (now, later))
    for name, samples in after.items():
        for key, value in samples.items():
            labels = {"job": "xaspool", "instance": "a", "space": "/s", **dict(key)}
            text = ", ".join(f"{label}={json.dumps(word)}" for label, word in sorted(labels.items()))
            first = before.get(name, {}).get(key)
            values = f"{'_' if first is None else repr(first)}x59 {value!r}x20"
            yield {"series": f"{name}{{{text}}}", "values": values}
