"""The files under deploy/: every metric they name exists, every file they name is there, every option is known."""

from __future__ import annotations

import configparser
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from slipstream.cli.serve import serve
from slipstream.engine.protocol import EngineStats
from slipstream.metrics.serving import ServingMetrics

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana/dashboards/slipstream.json").read_text())
METRIC = re.compile(r"\b(?:(?:slipstream|vllm):\w+|process_\w+)")


def known_samples() -> dict[str, set[str]]:
    """Sample name -> its labels, of a server that has seen everything once."""
    metrics = ServingMetrics("m", EngineStats)
    metrics.request_success.inc("stop")
    metrics.http_answered("GET", "/", 200, 0.1)
    metrics.rejected.inc("OverloadedError")
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(metrics.render()[0].decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


KNOWN = known_samples()


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    rules = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())["groups"]
    variables = [each["query"]["query"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query"]
    targets = [target["expr"] for panel in panels() for target in panel["targets"]]
    return [*targets, *variables, *(rule["expr"] for group in rules for rule in group["rules"])]


@pytest.mark.parametrize("expression", expressions())
def test_every_metric_and_label_exists(expression: str) -> None:
    names = METRIC.findall(expression)
    assert names
    assert [name for name in names if name not in KNOWN] == []
    labels = set().union(*(KNOWN[name] for name in names)) | {"job", "instance"}
    used = re.findall(r"(\w+)=~?\"", expression)
    for grouped in re.findall(r"by \(([^)]*)\)", expression):
        used += [label.strip() for label in grouped.split(",")]
    assert set(used) <= labels
    assert expression.count("(") == expression.count(")")


def test_everything_that_is_measured_is_on_the_dashboard() -> None:
    shown = {name for expression in expressions() for name in METRIC.findall(expression)}
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
    ours = {re.sub(r"_(bucket|sum|count)$", "", name) for name in KNOWN if name.startswith("slipstream:")}
    left_out = {"request_params_n", "request_params_max_tokens", "request_inference_time_seconds"}
    left_out |= {"engine_warm_up_seconds"}
    assert ours - shown == {f"slipstream:{name}" for name in left_out}


def test_every_metric_is_documented() -> None:
    text = (ROOT / "docs/observability.md").read_text()
    documented = set(re.findall(r"`(\w+)(?:\{[\w,]+\})?`", text))
    names = {name for name in KNOWN if name.startswith("slipstream:")}
    families = {re.sub(r"_(bucket|sum|count)$", "", name).removeprefix("slipstream:") for name in names}
    assert families - documented == set()


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert len({panel["title"] for panel in panels()}) == len(panels())
    for panel in panels():
        assert panel["datasource"]["uid"] == "${datasource}"


def serve_options(words: list[str]) -> set[str]:
    """The options among the words of a command line; fails for one that `slipstream serve` does not have."""
    used = {word for word in words if word.startswith("--")}
    known = {"--" + name.replace("_", "-") for name in inspect.signature(serve).parameters}
    assert used <= known
    return used


def test_the_compose_file() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = compose["services"]
    for service in services.values():
        for needed in service.get("depends_on", []):
            assert needed in services
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in compose["volumes"], mount
    assert serve_options(services["slipstream"]["command"]) == {"--host"}
    scrape = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    (job,) = scrape["scrape_configs"]
    assert job["static_configs"][0]["targets"][0].split(":")[0] in services
    assert all((DEPLOY / "prometheus" / name).is_file() for name in scrape["rule_files"])
    (source,) = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    assert source["url"].split("/")[2].split(":")[0] in services


def test_the_dockerfile() -> None:
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line.strip() and not line.startswith("#")]
    known = {"FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK"}
    assert {line[0] for line in lines} <= known | {"ENTRYPOINT", "CMD"}
    for line in lines:
        if line[0] == "COPY" and "--from" not in line[1]:
            *sources, _ = line[1].split()
            assert all((ROOT / source).exists() for source in sources)
    (command,) = [json.loads(line[1]) for line in lines if line[0] == "CMD"]
    assert command[0] == "serve"
    serve_options(command)


def test_the_systemd_unit() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "systemd/slipstream.service")
    words = unit["Service"]["ExecStart"].split()
    assert words[1] == "serve"
    assert serve_options(words) == {"--host", "--log-format"}
    assert int(unit["Service"]["TimeoutStopSec"]) > 30  # the drain time-out
