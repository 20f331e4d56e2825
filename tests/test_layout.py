"""No module is left out of the import contracts, which `lint-imports` checks."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOT_SHARED = {"runtime", "v1", "__init__", "__main__"}


def test_every_shared_module_is_under_the_contract_that_keeps_torch_out() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = [contract for contract in contracts if "torch" in contract.get("forbidden_modules", [])]
    entries = (ROOT / "forerun").iterdir()
    modules = {path.stem for path in entries if path.suffix == ".py" or (path / "__init__.py").exists()}
    expected = {"gateway"} | {f"forerun.{name}" for name in modules - NOT_SHARED}
    assert set(contract["source_modules"]) == expected, "list the new module in pyproject.toml"
