"""The contract: the committed stubs are what the protos say now, and every element is explained."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

ROOT = Path(__file__).parents[1]
PROTOS = sorted((ROOT / "protos/forerun/v1").glob("*.proto"))


def compile_protos(*options: str) -> None:
    names = [str(path.relative_to(ROOT / "protos")) for path in PROTOS]
    assert protoc.main(["protoc", f"-I{ROOT / 'protos'}", *options, *names]) == 0


def test_the_committed_stubs_are_current(tmp_path: Path) -> None:
    compile_protos(f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", f"--grpc_python_out={tmp_path}")
    fresh = {path.name: path.read_text() for path in (tmp_path / "forerun/v1").iterdir()}
    committed = {path.name: path.read_text() for path in (ROOT / "forerun/v1").glob("*_pb2*")}
    assert fresh == committed, "run `make proto`"


def test_every_element_of_the_contract_has_a_comment(tmp_path: Path) -> None:
    compile_protos(f"--descriptor_set_out={tmp_path / 'set'}", "--include_source_info")
    bare: list[str] = []
    for file in descriptor_pb2.FileDescriptorSet.FromString((tmp_path / "set").read_bytes()).file:
        comments = {tuple(at.path): at.leading_comments.strip() for at in file.source_code_info.location}
        bare += [f"{file.name}: {name}" for path, name in elements(file) if not comments.get(path)]
    assert bare == []


def elements(file: descriptor_pb2.FileDescriptorProto) -> list[tuple[tuple[int, ...], str]]:
    """The path of every named element, as source locations have it, and its name."""
    found: list[tuple[tuple[int, ...], str]] = []
    for index, message in enumerate(file.message_type):
        found += message_elements((4, index), message)
    for index, enum in enumerate(file.enum_type):
        found.append(((5, index), enum.name))
        found += [((5, index, 2, number), value.name) for number, value in enumerate(enum.value)]
    for index, service in enumerate(file.service):
        found.append(((6, index), service.name))
        found += [((6, index, 2, number), method.name) for number, method in enumerate(service.method)]
    return found


def message_elements(
    path: tuple[int, ...], message: descriptor_pb2.DescriptorProto
) -> list[tuple[tuple[int, ...], str]]:
    found = [(path, message.name)]
    found += [((*path, 2, index), f"{message.name}.{field.name}") for index, field in enumerate(message.field)]
    for index, oneof in enumerate(message.oneof_decl):
        if not oneof.name.startswith("_"):  # those stand for `optional` and are written nowhere
            found.append(((*path, 8, index), f"{message.name}.{oneof.name}"))
    for index, nested in enumerate(message.nested_type):
        if not nested.options.map_entry:
            found += message_elements((*path, 3, index), nested)
    return found


def test_buf_lint_passes() -> None:
    buf = shutil.which("buf", path=sysconfig.get_path("scripts")) or shutil.which("buf")
    if buf is None:
        pytest.fail("buf is missing; `make env` installs it")
    done = subprocess.run([buf, "lint"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_stubs_are_generated_with_the_oldest_grpc_that_is_supported() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    tools = re.search(r'"grpcio-tools==([\d.]+)"', text)
    oldest = re.search(r'"grpcio>=([\d.]+)"', text)
    assert tools and oldest and tools.group(1) == oldest.group(1)
    for stub in (ROOT / "forerun/v1").glob("*_pb2_grpc.py"):
        assert f"GRPC_GENERATED_VERSION = '{tools.group(1)}'" in stub.read_text()


def test_the_stubs_import_with_this_python() -> None:
    code = "from forerun.v1 import draft_pb2_grpc, gateway_pb2_grpc, target_pb2_grpc, types_pb2"
    subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=ROOT, check=True)
