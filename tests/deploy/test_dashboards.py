"""The dashboards' files: panels on the grid, data sources that are provisioned, links that lead somewhere."""

from __future__ import annotations

import json
import re
from itertools import combinations
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from forerun import span_attributes
from tests.deploy.dashboards import NAMES, Json, expressions, load, panels, provisioned, walk

WIDTH = 24  # columns of Grafana's grid


def links(board: Json) -> list[str]:
    return [each["url"] for each in walk(board) if "url" in each]


@pytest.mark.parametrize("name", NAMES)
def test_a_dashboard_has_a_lasting_address_and_panels_of_its_own(name: str) -> None:
    board = load(name)
    assert board["uid"] == f"forerun-{name}" and "id" not in board
    ids = [panel["id"] for panel in board["panels"]]
    titles = [panel["title"] for panel in panels(board)]
    assert len(ids) == len(set(ids)) and len(titles) == len(set(titles)) > 15
    for panel in panels(board):
        assert len(panel["description"]) > 60, f"{panel['title']}: what should somebody look at?"
        refs = [target["refId"] for target in panel["targets"]]
        assert refs and len(refs) == len(set(refs)), panel["title"]


@pytest.mark.parametrize("name", NAMES)
def test_panels_lie_on_the_grid_and_on_nobody_else(name: str) -> None:
    boxes = [(panel["title"], panel["gridPos"]) for panel in load(name)["panels"]]
    for title, box in boxes:
        assert box["x"] >= 0 and box["y"] >= 0 and box["w"] > 0 and box["h"] > 0, title
        assert box["x"] + box["w"] <= WIDTH, title
    for (one, a), (other, b) in combinations(boxes, 2):
        apart = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        above = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert apart or above, f"{one} and {other} overlap"


@pytest.mark.parametrize("name", NAMES)
def test_every_data_source_is_provisioned(name: str) -> None:
    sources = {source["uid"]: source["type"] for source in provisioned("datasources")}
    board = load(name)
    chosen = {each["name"]: each for each in board["templating"]["list"] if each["type"] == "datasource"}
    for variable in chosen.values():
        assert sources[variable["current"]["value"]] == variable["query"]
    for asked in [each["datasource"] for each in walk(board) if isinstance(each.get("datasource"), dict)]:
        assert chosen[asked["uid"].removeprefix("${").removesuffix("}")]["query"] == asked["type"]
    assert all(panel["datasource"] for panel in panels(board))


def test_data_sources_name_each_other_and_dashboards_lie_where_grafana_looks() -> None:
    sources = {source["uid"]: source for source in provisioned("datasources")}
    assert [source["url"] for source in sources.values()] == ["http://prometheus:9090", "http://jaeger:16686"]
    named = {each["datasourceUid"] for each in walk(list(sources.values())) if "datasourceUid" in each}
    assert named == {"jaeger"}
    (provider,) = provisioned("dashboards")
    assert provider["type"] == "file" and provider["options"]["path"] == "/var/lib/grafana/dashboards"


@pytest.mark.parametrize("name", NAMES)
def test_every_variable_is_declared_and_known_here(name: str) -> None:
    board = load(name)
    declared = {each["name"] for each in board["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(board)))
    builtin = {"__rate_interval", "__all", "__from", "__to", "__value"}
    assert used - builtin == declared
    assert not [expr for expr in expressions(board) if "$" in expr]


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_to_dashboards_and_to_spans_that_exist(name: str) -> None:
    attributes = {value for value in vars(span_attributes).values() if isinstance(value, str)} | {"error"}
    operations = {span_attributes.ROUND, span_attributes.DRAFT, span_attributes.VERIFY, span_attributes.PREFILL}
    operations |= {span_attributes.QUEUE, "forerun.v1.GatewayService/Generate"}
    services = {"forerun-gateway", "forerun-draft", "forerun-target"}
    board = load(name)
    searches = [each for each in walk(board) if each.get("queryType") == "search"]
    for url in links(board):
        parts = urlsplit(url.replace("${jaeger_ui:raw}", "http://jaeger"))
        if parts.path.startswith("/d/"):
            assert parts.path.removeprefix("/d/") in {f"forerun-{other}" for other in NAMES}
        elif parts.path == "/explore":
            (pane,) = json.loads(unquote(parse_qs(parts.query)["panes"][0])).values()
            assert {query["datasource"]["uid"] for query in pane["queries"]} == {pane["datasource"]} == {"${jaeger}"}
            searches += pane["queries"]
        elif parts.path == "/search":
            asked = {key: values[0] for key, values in parse_qs(parts.query).items()}
            assert asked["start"] == "${__from}000" and asked["end"] == "${__to}000"  # microseconds
            searches.append(
                asked | {"tags": " ".join(f"{k}={v}" for k, v in json.loads(asked.get("tags", "{}")).items())}
            )
        else:
            assert parts.path == "/alerting/list"
    assert len(searches) > 10
    for asked in searches:
        assert asked["service"] in services and asked["operation"] in operations, asked
        assert {tag.partition("=")[0] for tag in asked.get("tags", "").split()} <= attributes, asked
