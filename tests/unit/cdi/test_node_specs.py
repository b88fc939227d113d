"""CDI specifications on the disk of a node.

Device nodes are ones that every machine has; what counts is that they are character devices.
"""

from __future__ import annotations

import json
import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuslice.cdi.errors import CdiError
from gpuslice.cdi.node_specs import CdiNames, refresh_specs
from gpuslice.codes import Code
from gpuslice.config.settings import CdiSettings, ContainerSettings, DeviceId, DeviceList
from gpuslice.slicing.device import Device, mig_devices, whole
from gpuslice.slicing.gpu import Gpu, MigDevice
from tests.unit.gpus.elf_files import library
from tests.unit.logged import logged

VERSION = "570.124.06"
OURS = "k8s.device-plugin.nvidia.com"
GPU_FILE = f"{OURS}-gpu.json"
MIG = MigDevice("MIG-m", 0, 1, 0, "1g.5gb", 4864, nodes=("/dev/zero", "/dev/full"))
A = Gpu("GPU-a", 0, 0, "T4", 15360, nodes=("/dev/null",))
B = Gpu("GPU-b", 1, 1, "A100", 40960, nodes=("/dev/null",), mig_enabled=True, mig=(MIG,))
CDI = ContainerSettings(device_list=frozenset({DeviceList.CDI_CRI}))


class Node:
    """A driver root without /dev, so that device nodes are the machine's own."""

    def __init__(self, directory: Path) -> None:
        self.driver = directory / "driver"
        self.cdi = directory / "run" / "cdi"
        self.etc = directory / "etc" / "cdi"
        self.etc.mkdir(parents=True)
        self.settings = CdiSettings(container_driver_root=str(self.driver), directory=str(self.cdi))
        (self.driver / "usr" / "lib64").mkdir(parents=True)
        self.install(VERSION)

    def install(self, version: str) -> None:
        path = self.driver / "usr" / "lib64" / f"libcuda.so.{version}"
        path.write_bytes(library("libcuda.so.1"))

    def refresh(
        self,
        *gpus: Gpu,
        containers: ContainerSettings = CDI,
        version: str = VERSION,
        devices: tuple[Device, ...] | None = None,
    ) -> CdiNames:
        every = tuple(d for gpu in gpus for d in (mig_devices(gpu) or (whole(gpu),)))
        return refresh_specs(
            self.settings,
            containers,
            gpus,
            devices or every,
            version,
            host_directories=(self.etc, self.cdi),
            own_root=self.driver,
        )

    def spec(self, name: str = GPU_FILE) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.cdi / name).read_text())
        return content

    def host_spec(self, *names: str, kind: str = "nvidia.com/gpu", version: str = VERSION) -> str:
        devices = [{"name": name, "containerEdits": {"env": ["A=b"]}} for name in names]
        mounts = [{"hostPath": f"/usr/lib64/libcuda.so.{version}", "containerPath": "/x"}]
        return yaml.safe_dump(
            {
                "cdiVersion": "0.5.0",
                "kind": kind,
                "devices": devices,
                "containerEdits": {"mounts": mounts},
            }
        )


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_every_device_that_may_be_given_out_is_described(node: Node) -> None:
    names = node.refresh(A, B)
    assert names == CdiNames({"GPU-a": f"{OURS}/gpu=GPU-a", "MIG-m": f"{OURS}/gpu=MIG-m"}, ())
    nodes = {
        device["name"]: [entry["path"] for entry in device["containerEdits"]["deviceNodes"]]
        for device in node.spec()["devices"]
    }
    assert nodes == {"GPU-a": ["/dev/null"], "MIG-m": ["/dev/full", "/dev/null", "/dev/zero"]}
    assert (node.cdi / GPU_FILE).stat().st_mode & 0o777 == 0o644
    assert [path.name for path in node.cdi.iterdir()] == [GPU_FILE]


def test_devices_are_named_by_index_if_asked(node: Node) -> None:
    names = node.refresh(A, B, containers=replace(CDI, device_id=DeviceId.INDEX))
    assert names.cdi_names == {"GPU-a": f"{OURS}/gpu=0", "MIG-m": f"{OURS}/gpu=1:0"}


def test_a_gpu_in_mig_mode_can_be_described_as_a_whole(node: Node) -> None:
    assert node.refresh(B, devices=(whole(B),)).cdi_names == {"GPU-b": f"{OURS}/gpu=GPU-b"}


def test_a_file_is_written_only_if_the_node_changed(node: Node) -> None:
    node.refresh(A)
    before = (node.cdi / GPU_FILE).stat().st_ino
    node.refresh(A)
    assert (node.cdi / GPU_FILE).stat().st_ino == before
    node.refresh(A, B)
    assert {device["name"] for device in node.spec()["devices"]} == {"GPU-a", "MIG-m"}


def test_a_broken_or_hidden_file_is_made_good(node: Node) -> None:
    node.refresh(A)
    (node.cdi / GPU_FILE).write_text("{")
    (node.cdi / GPU_FILE).chmod(0o600)
    node.refresh(A)
    assert node.spec()["kind"] == f"{OURS}/gpu"
    assert (node.cdi / GPU_FILE).stat().st_mode & 0o777 == 0o644


UNWRITTEN = rf"{GPU_FILE} cannot be written .* mount the host's"


def test_a_failed_write_leaves_the_old_file_and_the_devices_that_it_describes(node: Node) -> None:
    node.refresh(A)
    # A directory in the way of the draft: fails for root as well.
    (node.cdi / f".{GPU_FILE}.tmp").mkdir()
    found = node.refresh(A, B)
    assert found.cdi_names.keys() == {"GPU-a"}
    assert found.outdated is not None
    assert re.search(UNWRITTEN, found.outdated)
    assert [device["name"] for device in node.spec()["devices"]] == ["GPU-a"]
    (node.cdi / f".{GPU_FILE}.tmp").rmdir()
    found = node.refresh(A, B)
    assert found.cdi_names.keys() == {"GPU-a", "MIG-m"}
    assert found.outdated is None


def test_a_failed_write_says_why_if_the_old_file_describes_no_device_as_it_should(
    node: Node,
) -> None:
    node.refresh(A)
    (node.cdi / f".{GPU_FILE}.tmp").mkdir()
    with pytest.raises(CdiError, match=UNWRITTEN):
        node.refresh(replace(A, nodes=("/dev/zero",)))
    node.install("575.1")  # other libraries, for all devices
    with pytest.raises(CdiError, match=UNWRITTEN):
        node.refresh(A, version="575.1")


def test_a_device_without_its_nodes_is_left_out(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    gone = replace(A, uuid="GPU-gone", nodes=("/dev/null", "/dev/does-not-exist"))
    with caplog.at_level(logging.WARNING):
        names = node.refresh(A, gone)
    assert names.cdi_names.keys() == {"GPU-a"}
    assert logged(caplog) == [Code.CDI_DEVICE_MISSING]


def test_a_missing_driver_is_said_to_be_missing(node: Node) -> None:
    with pytest.raises(CdiError, match=r"driver 999\.1 has no libraries .*driver-root-ctr-path"):
        node.refresh(A, version="999.1")


def test_a_file_without_devices_is_removed(node: Node) -> None:
    node.refresh(A)
    node.refresh()
    assert not (node.cdi / GPU_FILE).exists()


def test_extra_modes_without_hardware_are_not_named(node: Node) -> None:
    wanted = replace(CDI, gds=True, gdrcopy=True, mofed=True, imex_channels=(0,))
    stale = node.cdi / f"{OURS}-gds.json"
    node.refresh(A)
    stale.write_text("{}")
    assert node.refresh(A, containers=wanted).cdi_extras == ()
    assert [path.name for path in node.cdi.iterdir()] == [GPU_FILE]


def test_the_specification_of_the_host_is_used_instead(node: Node) -> None:
    (node.etc / "nvidia.yaml").write_text(node.host_spec("0", "GPU-a", "MIG-m", "all"))
    names = node.refresh(A, B)
    assert names.cdi_names == {"GPU-a": "nvidia.com/gpu=GPU-a", "MIG-m": "nvidia.com/gpu=MIG-m"}
    assert not node.cdi.exists()


def test_the_specification_of_the_host_may_be_json_beside_ours(node: Node) -> None:
    node.cdi.mkdir(parents=True)
    content = yaml.safe_load(node.host_spec("GPU-a"))
    (node.cdi / "nvidia.json").write_text(json.dumps(content))
    assert node.refresh(A).cdi_names == {"GPU-a": "nvidia.com/gpu=GPU-a"}


def test_ours_is_kept_current_for_containers_that_were_started_with_it(node: Node) -> None:
    node.refresh(A)
    (node.etc / "nvidia.yaml").write_text(node.host_spec("GPU-a", "MIG-m"))
    assert node.refresh(A, B).cdi_names["GPU-a"] == "nvidia.com/gpu=GPU-a"
    assert {device["name"] for device in node.spec()["devices"]} == {"GPU-a", "MIG-m"}


@pytest.mark.parametrize(
    "content",
    [
        "kind: nvidia.com/gpu\n  broken: [",
        "kind: nvidia.com/gpu\ndevices: 3\n# 570.124.06",
        "- nvidia.com/gpu",
        "\x00\x01",
        "",
    ],
)
def test_a_specification_that_makes_no_sense_is_passed_over(node: Node, content: str) -> None:
    (node.etc / "nvidia.yaml").write_text(content)
    (node.etc / "binary.json").write_bytes(b"nvidia.com/gpu\xff\xfe")
    assert node.refresh(A).cdi_names == {"GPU-a": f"{OURS}/gpu=GPU-a"}


def test_a_specification_of_the_host_must_have_all_devices_and_fit_the_driver(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    ours = {"GPU-a": f"{OURS}/gpu=GPU-a", "MIG-m": f"{OURS}/gpu=MIG-m"}
    host = node.etc / "nvidia.yaml"
    host.write_text(node.host_spec("GPU-a"))
    assert node.refresh(A, B).cdi_names == ours
    host.write_text(node.host_spec("GPU-a", "MIG-m", kind="example.com/gpu"))
    assert node.refresh(A, B).cdi_names == ours
    host.write_text(node.host_spec("GPU-a", "MIG-m", version="535.1"))
    with caplog.at_level(logging.WARNING):
        assert node.refresh(A, B).cdi_names == ours
    assert logged(caplog) == [Code.HOST_CDI_SPEC_IGNORED]
