"""Labels of a node of a nested cluster: they describe its own GPUs only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuslice.codes import Code
from gpuslice_sim.node import SimNode, create
from tests.node.test_nested import INVALID, VARIABLE

from .conftest import Once, Start
from .test_labels_command import GFD, has_line, labels, wait_until

# Command lines that print labels once.
PRINTING = {
    "gpuslice labels": ("gpuslice", "labels", "--oneshot", "--output-file", ""),
    GFD: (GFD, "--oneshot", "--use-node-feature-api=false", "--output-file="),
}
every_program = pytest.mark.parametrize("program", PRINTING)


@pytest.fixture
def node(tmp_path: Path) -> SimNode:
    return create(tmp_path / "node", "mixed")  # T4, A100, T4, L40S


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gpu.env"


def allocate(file: Path, node: SimNode, *indices: int) -> None:
    file.write_text(f"{VARIABLE}={','.join(node.gpu(index).uuid for index in indices)}\n")


@every_program
def test_a_guest_is_labelled_with_its_own_gpus(
    node: SimNode, once: Once, file: Path, program: str
) -> None:
    allocate(file, node, 1)
    done = once(*PRINTING[program], "--nested=guest", f"--nested-env={file}")
    assert done.returncode == 0, done.stderr
    found = labels(done.stdout)
    assert found["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB"
    assert found["nvidia.com/gpu.count"] == "1"
    models = {key for key in found if key.startswith("gpuslice.io/gpu.") and key.endswith(".count")}
    assert models == {"gpuslice.io/gpu.NVIDIA-A100-SXM4-40GB.count"}


@every_program
def test_variables_and_the_file_have_the_same_effect_as_flags(
    node: SimNode, once: Once, file: Path, tmp_path: Path, program: str
) -> None:
    allocate(file, node, 0, 2)
    config = tmp_path / "config.yaml"
    config.write_text(f"flags: {{nested: guest, nestedEnv: {file}}}\n")
    by_file = once(*PRINTING[program], f"--config-file={config}")
    by_variable = once(*PRINTING[program], NESTED="guest", NESTED_ENV=str(file))
    allocated = file.read_text().strip().partition("=")[2]
    file.unlink()
    # Without a mounted file, the variable that the container gets from the host is used.
    unmounted = once(*PRINTING[program], "--nested=guest", **{VARIABLE: allocated})
    for done in (by_file, by_variable, unmounted):
        assert done.returncode == 0, done.stderr
        assert labels(done.stdout)["nvidia.com/gpu.count"] == "2"
        assert labels(done.stdout)["nvidia.com/gpu.product"] == "Tesla-T4"


@every_program
def test_the_list_has_no_effect_unless_the_node_is_a_guest(
    node: SimNode, once: Once, file: Path, program: str
) -> None:
    allocate(file, node, 1)
    done = once(*PRINTING[program], f"--nested-env={file}")
    assert done.returncode == 0
    assert labels(done.stdout)["gpuslice.io/gpu.Tesla-T4.count"] == "2"
    assert f"{Code.CONFIGURATION_WARNING}: nested-env has no effect" in done.stderr


@every_program
@pytest.mark.parametrize("kind", INVALID)
def test_an_invalid_list_ends_the_program_with_a_reason(
    once: Once, file: Path, program: str, kind: str
) -> None:
    make, _ = INVALID[kind]
    make(file)
    done = once(*PRINTING[program], "--nested=guest", f"--nested-env={file}")
    assert done.returncode == 1
    error = done.stderr.splitlines()[-1]
    assert error.startswith(f"{program}: ")
    assert f"nested-env: '{file}' is not valid: " in error or f"{VARIABLE}: " in error
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_labels_stay_while_the_list_is_invalid(
    node: SimNode, start: Start, file: Path, tmp_path: Path
) -> None:
    path = tmp_path / "gfd"
    allocate(file, node, 1)
    process = start(
        "gpuslice", "labels", "--sleep-interval=100ms", f"--output-file={path}",
        "--nested=guest", f"--nested-env={file}",
    )  # fmt: skip
    wait_until(has_line(path, "gpuslice.io/gpu.NVIDIA-A100-SXM4-40GB.count=1"))
    before = path.read_text()
    INVALID["of another node"][0](file)
    process.wait_for_output(f"{Code.RECONCILE_FAILED}.*{VARIABLE}")
    assert path.read_text() == before
    allocate(file, node, 1, 3)
    wait_until(has_line(path, "gpuslice.io/gpu.NVIDIA-L40S.count=1"))
    assert process.stop() == 0


def test_the_agent_and_the_labels_command_publish_the_same_labels_for_a_guest(
    node: SimNode, once: Once, start: Start, file: Path, tmp_path: Path
) -> None:
    allocate(file, node, 0, 1)
    path, config = tmp_path / "by-agent", tmp_path / "config.yaml"
    config.write_text(
        f"flags: {{nested: guest, nestedEnv: {file}, "
        f"gfd: {{noTimestamp: true, outputFile: {path}}}}}\n"
    )
    socket = f"--kubelet-socket={tmp_path / 'kubelet.sock'}"
    agent = start("gpuslice", "agent", f"--config-file={config}", "--labels=file", socket)
    wait_until(has_line(path, "nvidia.com/gpu.count=1"))
    done = once(*PRINTING["gpuslice labels"], f"--config-file={config}")
    # Only the agent knows how containers get their limits, and how firmly these hold.
    of_agent = re.sub(r"gpuslice\.io/(limits\.|resource\..*\.tier=).*\n", "", path.read_text())
    assert done.stdout == of_agent
    assert agent.stop() == 0
