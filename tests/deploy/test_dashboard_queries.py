"""The dashboards' queries: they parse, and they find something on the pages of services that run."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import urllib.request
from pathlib import Path

import grpc
import pytest
import yaml
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.deploy.dashboards import NAMES, ROOT, expressions, load, metrics_in
from tests.e2e.test_metrics import measured
from tests.trio import HOST, MODEL, generate, make_pair

RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
PROMETHEUS_OWN = {"ALERTS", "up"}
# A service's own, on a GPU, and those of NVIDIA's exporter, where there is one.
GPU_ONLY = {"forerun_gpu_memory_bytes", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"}
PROMPT = [5, 6, 7, 8]
WAIT_S = 10.0
PROMTOOL_S = 60.0

Pages = dict[str, list[Metric]]  # by job


def families(port: int) -> list[Metric]:
    """A page's metrics."""
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=WAIT_S) as page:
        return list(text_string_to_metric_families(page.read().decode()))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    """All three, after an answer with speculation and a request that was refused."""

    async def run() -> Pages:
        async with measured(make_pair(tmp_path_factory.mktemp("pair")), MODEL) as (running, ports):
            await generate(running.stub, PROMPT, max_tokens=24)
            with pytest.raises(grpc.aio.AioRpcError):
                await generate(running.stub, PROMPT, temperature=-1.0)
            await running.wait_until_idle()
            served = {"target": ports.target, "draft": ports.draft, "gateway": ports.gateway}
            return {job: await asyncio.to_thread(families, port) for job, port in served.items()}

    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("OTEL_")]:  # no receiver hears of tests
            patch.delenv(name)
        return asyncio.run(run())


def recorded() -> set[str]:
    """The names that the recording rules make."""
    return {rule["record"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}


def as_series(pages: Pages) -> list[dict[str, str]]:
    """The pages as promtool's input: counters grow by one a scrape, gauges stay as they were."""
    found = []
    for job, families in pages.items():
        place = {"job": job, "instance": f"{job}:9464"}
        found.append({"series": f"up{braced(place)}", "values": "1+0x40"})
        for family in families:
            grows = family.type in ("counter", "histogram")
            for sample in family.samples:
                if not sample.name.endswith("_created"):
                    values = f"{sample.value:.6f}+{int(grows)}x40"
                    found.append({"series": f"{sample.name}{braced(sample.labels | place)}", "values": values})
    return found


def braced(labels: dict[str, str]) -> str:
    return "{" + ", ".join(f"{name}={json.dumps(value)}" for name, value in labels.items()) + "}"


@pytest.mark.parametrize("name", NAMES)
def test_a_dashboard_speaks_of_metrics_that_exist(name: str, pages: Pages) -> None:
    board = load(name)
    exported = {sample.name for families in pages.values() for family in families for sample in family.samples}
    variables = {each["query"]["query"] for each in board["templating"]["list"] if each["type"] == "query"}
    named = {metric for query in {*expressions(board), *variables} for metric in metrics_in(query)}
    unknown = named - exported - recorded() - PROMETHEUS_OWN - GPU_ONLY
    assert len(named) > 10 and not unknown


def test_metrics_are_found_in_queries() -> None:
    query = 'sum by (le) (rate(a_total{b="c(d"}[5m])) / on () group_left () (x:y > 0) or label_values(f{g="h"}, i)'
    assert metrics_in(query) == {"a_total", "x:y", "f"}


def promtool(folder: Path, what: str, document: object) -> tuple[int, str]:
    """`promtool {what} rules` on a document; its exit status and what it said."""
    file = folder / "written.yml"
    file.write_text(yaml.safe_dump(document))
    command = ["promtool", what, "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROMTOOL_S, check=False)
    return done.returncode, done.stdout + done.stderr


needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool")


@needs_promtool
@pytest.mark.parametrize("name", NAMES)
def test_every_query_parses(name: str, tmp_path: Path) -> None:
    rules = [{"record": f"query:{i}", "expr": expr} for i, expr in enumerate(expressions(load(name)))]
    code, said = promtool(tmp_path, "check", {"groups": [{"name": name, "rules": rules}]})
    assert code == 0 and f"{len(rules)} rules found" in said, said


@needs_promtool
@pytest.mark.parametrize("name", NAMES)
def test_every_query_finds_numbers_on_the_pages(name: str, pages: Pages, tmp_path: Path) -> None:
    elsewhere = GPU_ONLY | {"ALERTS"}
    queries = [expr for expr in expressions(load(name)) if not metrics_in(expr) & elsewhere]
    checks = [
        {
            "expr": f"count(({expr}) >= 0 < Inf) > bool 0",
            "eval_time": "10m",
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        for expr in queries
    ]
    document = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "15s",
        "tests": [{"interval": "15s", "input_series": as_series(pages), "promql_expr_test": checks}],
    }
    code, said = promtool(tmp_path, "test", document)
    assert code == 0, said
