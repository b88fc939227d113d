"""Changes of the hardware are detected without a new enumeration."""

from __future__ import annotations

import pytest

from .conftest import Evaluate, MakeNode

WATCH = """
nvml = Nvml.open()
inventory = read_inventory(nvml, sysfs, proc)
before = fingerprint(nvml, inventory, sysfs)
{event}
now = fingerprint(nvml, inventory, sysfs)
result = changes(before, now)
assert bool(result) == (before != now)
"""


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ("pass", []),
        ("node.faults.xid(0, 79)", []),
        ("node.faults.lost(0)", []),
        ("node.faults.utilization(0, 90)", []),
        ("node.faults.unplug(0)", ["the GPU at 0000:07:00.0 was removed"]),
        ("node.faults.add_gpu('t4')", ["the GPU at 0000:88:00.0 was added"]),
        ("node.faults.unbind(1)", ["0000:87:00.0 went from nvidia to no driver"]),
        ("node.faults.unbind(1, 'vfio-pci')", ["0000:87:00.0 went from nvidia to vfio-pci"]),
        ("node.faults.unbind(1); node.faults.plug(1)", []),
        ("node.faults.mig(1, ['7g.40gb'])", ["was enabled"]),
        ("node.faults.mig(0, [])", ["was disabled"]),
        ("node.faults.mig(0, ['1g.5gb'] * 7)", ["the MIG devices of GPU-"]),
        ("node.faults.mig(0, []); node.faults.lost(1)", ["was disabled"]),
    ],
)
def test_changes_are_described_in_words(
    event: str, expected: list[str], make_node: MakeNode, evaluate: Evaluate
) -> None:
    found = evaluate(make_node("a100x2-mig-mixed"), WATCH.format(event=event))
    assert len(found) == len(expected)
    assert all(part in text for part, text in zip(expected, found, strict=True))


def test_a_skipped_gpu_that_answers_again_is_a_change(
    make_node: MakeNode, evaluate: Evaluate
) -> None:
    node = make_node("t4x2")
    node.faults.lost(1)
    found = evaluate(node, WATCH.format(event="node.faults.restore(1)"))
    assert found == ("GPU 1 answers again",)


def test_a_lost_gpu_is_not_a_change_of_its_mig_devices(
    make_node: MakeNode, evaluate: Evaluate
) -> None:
    node = make_node("a100x2-mig-mixed")
    minors = node.root / "proc" / "driver" / "nvidia-caps" / "mig-minors"
    minors.write_text(minors.read_text().replace("gpu0/gi3/", "gone/"))
    assert evaluate(node, WATCH.format(event="node.faults.lost(0)")) == ()


def test_a_skipped_mig_device_that_answers_again_is_a_change(
    make_node: MakeNode, evaluate: Evaluate
) -> None:
    node = make_node("a100x2-mig-mixed")
    node.faults.call(0, "nvmlDeviceGetAttributes_v2", "UNKNOWN")
    event = "node.faults.call(0, 'nvmlDeviceGetAttributes_v2', None)"
    assert evaluate(node, WATCH.format(event=event)) == tuple(
        f"MIG device 0:{index} answers again" for index in range(4)
    )


def test_a_sysfs_without_gpus_is_ignored(make_node: MakeNode, evaluate: Evaluate) -> None:
    code = "sysfs = Path('/nowhere')\n" + WATCH.format(event="node.faults.unplug(1)")
    assert evaluate(make_node("t4x2"), code) == ()


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ("pass", []),
        ("node.faults.add_gpu('t4')", ["was added"]),
        ("node.faults.mig(0, ['1g.5gb'] * 7)", ["the MIG devices of GPU-"]),
    ],
)
def test_changes_while_the_inventory_is_read_are_detected(
    event: str, expected: list[str], make_node: MakeNode, evaluate: Evaluate
) -> None:
    found = evaluate(
        make_node("a100x2-mig-mixed"),
        f"""
functions = gpu_functions(sysfs)
nvml = Nvml.open()
inventory = read_inventory(nvml, sysfs, proc)
{event}
before = of_inventory(inventory, functions)
result = changes(before, fingerprint(nvml, inventory, sysfs))
""",
    )
    assert len(found) == len(expected)
    assert all(part in text for part, text in zip(expected, found, strict=True))
