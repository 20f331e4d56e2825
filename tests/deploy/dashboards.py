"""What the dashboards are: their files, their panels, what they ask of Prometheus."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
GRAFANA = ROOT / "deploy" / "grafana"
NAMES = ("operator", "engineer")
VARIABLES = {"$__rate_interval": "5m", "$gateway": ".*", "$model": ".*", "$instance": ".*"}
WORDS = {  # of PromQL, as far as dashboards use it
    "sum", "min", "rate", "increase", "histogram_quantile", "vector", "label_values",
    "by", "on", "ignoring", "group_left", "or",
}  # fmt: skip

Json = dict[str, Any]


def load(name: str) -> Json:
    found: Json = json.loads((GRAFANA / "dashboards" / f"{name}.json").read_text())
    return found


def provisioned(kind: str) -> list[Json]:
    entries: list[Json] = []
    for path in sorted((GRAFANA / "provisioning" / kind).glob("*.yml")):
        entries += yaml.safe_load(path.read_text())["datasources" if kind == "datasources" else "providers"]
    return entries


def walk(value: Any) -> Iterator[Json]:
    """All objects in a document, the outermost first."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from walk(inner)


def panels(board: Json) -> list[Json]:
    """Those that show something."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def expressions(board: Json) -> list[str]:
    """What is asked of Prometheus, with values in the variables' places."""
    found = [each["expr"] for each in walk(board) if "expr" in each]
    for variable, value in VARIABLES.items():
        found = [expr.replace(variable, value) for expr in found]
    return found


def metrics_in(query: str) -> set[str]:
    """The metrics that a query names; words of PromQL that are not in WORDS count as such, too."""
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^]]*\]', " ", query)
    bare = re.sub(r"\b(by|on|ignoring|group_left)\s*\([^)]*\)", " ", bare)
    bare = re.sub(r"(label_values\([^,]*),[^)]*", r"\1", bare)
    return set(re.findall(r"[A-Za-z_:][A-Za-z0-9_:]*", bare)) - WORDS
