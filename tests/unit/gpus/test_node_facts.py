"""Facts about a node in addition to its GPUs."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from gpuslice.gpus.node_facts import Vgpu, read_facts, vgpu_of
from tests.unit.labels.nodes import T4

STATUS, LIST, CAPABILITY = 0x06, 0x34, 0xD0


def config_space(capability: bytes = b"", *, before: bytes = b"") -> bytes:
    """A PCI configuration space whose list of capabilities ends with this one."""
    space = bytearray(256)
    space[0:2] = b"\xde\x10"
    if capability:
        space[STATUS] = 0x10
        space[LIST] = 0x60 if before else CAPABILITY
        if before:
            space[0x60 : 0x60 + len(before)] = before
            space[0x61] = CAPABILITY
        space[CAPABILITY : CAPABILITY + len(capability)] = capability
    return bytes(space)


def vendor_capability(*records: bytes, signature: bytes = b"VF") -> bytes:
    body = signature + b"".join(records)
    return bytes([0x09, 0x00, 3 + len(body)]) + body


def version_record(version: bytes, branch: bytes) -> bytes:
    return bytes([0, 22]) + version.ljust(10, b"\0") + branch.ljust(10, b"\0")


def test_the_driver_of_the_hypervisor_is_read() -> None:
    capability = vendor_capability(version_record(b"460.16", b"r460_00"))
    assert vgpu_of(config_space(capability)) == Vgpu("460.16", "r460_00")


def test_other_capabilities_and_records_are_passed_over() -> None:
    capability = vendor_capability(b"\x07\x04\xff\xff", version_record(b"550.54.10", b"r550"))
    space = config_space(capability, before=b"\x05\x00\x81\x00")
    assert vgpu_of(space) == Vgpu("550.54.10", "r550")


@pytest.mark.parametrize(
    "space",
    [
        config_space(),
        config_space(b"\x09\x00\x14\x01\x00"),
        config_space(vendor_capability(version_record(b"1", b"2"), signature=b"XX")),
        config_space(b"\xff\x00\x00"),
    ],
)
def test_a_real_gpu_is_no_virtual_one(space: bytes) -> None:
    assert vgpu_of(space) is None


@pytest.mark.parametrize("records", [[], [b"\x07\x00"], [b"\x00\x16abc"], [b"\x07\x40"]])
def test_a_capability_without_a_valid_version_is_a_vgpu_of_unknown_version(
    records: list[bytes],
) -> None:
    assert vgpu_of(config_space(vendor_capability(*records))) == Vgpu()


def test_capabilities_in_a_circle_end() -> None:
    space = bytearray(config_space(b"\x05\xd0\x00"))
    assert vgpu_of(bytes(space)) is None


class TestSysfs:
    @pytest.fixture
    def sysfs(self, tmp_path: Path) -> Path:
        self.add(tmp_path, T4.pci_bus_id, vendor="0x10de", config=config_space())
        self.add(tmp_path, "0000:00:1f.0", vendor="0x8086", config=b"")
        return tmp_path

    @staticmethod
    def add(sysfs: Path, address: str, *, vendor: str, config: bytes) -> None:
        function = sysfs / "bus" / "pci" / "devices" / address
        function.mkdir(parents=True)
        (function / "vendor").write_text(f"{vendor}\n")
        (function / "class").write_text("0x030200\n")
        (function / "config").write_bytes(config)

    def test_the_pci_class_of_each_gpu_is_read(self, sysfs: Path) -> None:
        gone = replace(T4, pci_bus_id="0000:ff:00.0")
        assert read_facts(None, [T4, gone], sysfs=sysfs).pci_classes == (0x030200, None)

    def test_a_node_may_have_no_virtual_gpu(self, sysfs: Path) -> None:
        assert read_facts(None, [T4], sysfs=sysfs).vgpus == ()

    def test_virtual_gpus_are_found_by_their_function(self, sysfs: Path) -> None:
        capability = vendor_capability(version_record(b"460.16", b"r460_00"))
        self.add(sysfs, "0000:05:00.0", vendor="0x10de", config=config_space(capability))
        assert read_facts(None, [T4], sysfs=sysfs).vgpus == (Vgpu("460.16", "r460_00"),)

    def test_a_configuration_space_that_is_not_complete_leaves_vgpus_unknown(
        self, sysfs: Path
    ) -> None:
        self.add(sysfs, "0000:05:00.0", vendor="0x10de", config=config_space()[:64])
        assert read_facts(None, [T4], sysfs=sysfs).vgpus is None

    def test_vgpus_are_unknown_on_a_machine_without_pci(self, tmp_path: Path) -> None:
        assert read_facts(None, [], sysfs=tmp_path / "none").vgpus is None


def test_the_machine_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "product_name"
    path.write_text("  Some Server\n")
    assert read_facts(None, [], machine_type_file=str(path)).machine == "Some Server"
    assert read_facts(None, [], machine_type_file=str(tmp_path / "gone")).machine == "unknown"
    assert read_facts(None, [], machine_type_file="").machine == "unknown"


def test_a_file_of_the_machine_that_does_not_end_or_blocks_is_not_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in ("/dev/zero", str(pipe), str(tmp_path)):
        assert read_facts(None, [], machine_type_file=path).machine == "unknown"
    large = tmp_path / "large"
    large.write_text("x" * 1_000_000)
    assert len(read_facts(None, [], machine_type_file=str(large)).machine) == 4096
