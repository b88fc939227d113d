"""Hot-plug, drivers, MIG layouts and GPUs that come back, seen without a new enumeration."""

from __future__ import annotations

import pytest

from .conftest import Look, MakeNode

WATCH = """
nvml = Nvml.open()
inventory = read_inventory(nvml, sysfs, proc)
before = fingerprint(nvml, inventory, sysfs)
{event}
now = fingerprint(nvml, inventory, sysfs)
answer = changes(before, now)
assert bool(answer) == (before != now)
"""


@pytest.mark.parametrize(
    ("event", "told"),
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
        ("node.faults.mig(1, ['7g.40gb'])", ["was switched on"]),
        ("node.faults.mig(0, [])", ["was switched off"]),
        ("node.faults.mig(0, ['1g.5gb'] * 7)", ["the MIG devices of GPU-"]),
        ("node.faults.mig(0, []); node.faults.lost(1)", ["was switched off"]),
    ],
)
def test_what_happens_to_a_node_is_told_in_words(
    event: str, told: list[str], make_node: MakeNode, look: Look
) -> None:
    found = look(make_node("a100x2-mig-mixed"), WATCH.format(event=event))
    assert len(found) == len(told)
    assert all(part in text for part, text in zip(told, found, strict=True))


def test_a_gpu_that_was_left_out_is_missed_until_it_answers(
    make_node: MakeNode, look: Look
) -> None:
    node = make_node("t4x2")
    node.faults.lost(1)
    found = look(node, WATCH.format(event="node.faults.restore(1)"))
    assert found == ("GPU 1 answers again",)


def test_a_lost_gpu_is_not_taken_for_one_with_other_mig_devices(
    make_node: MakeNode, look: Look
) -> None:
    node = make_node("a100x2-mig-mixed")
    minors = node.root / "proc" / "driver" / "nvidia-caps" / "mig-minors"
    minors.write_text(minors.read_text().replace("gpu0/gi3/", "gone/"))
    assert look(node, WATCH.format(event="node.faults.lost(0)")) == ()


def test_a_mig_device_that_was_left_out_is_missed_until_it_answers(
    make_node: MakeNode, look: Look
) -> None:
    node = make_node("a100x2-mig-mixed")
    node.faults.call(0, "nvmlDeviceGetAttributes_v2", "UNKNOWN")
    event = "node.faults.call(0, 'nvmlDeviceGetAttributes_v2', None)"
    assert look(node, WATCH.format(event=event)) == tuple(
        f"GPU 0:{place} answers again" for place in range(4)
    )


def test_a_machine_whose_sysfs_shows_no_gpu_is_not_judged_by_it(
    make_node: MakeNode, look: Look
) -> None:
    code = "sysfs = Path('/nowhere')\n" + WATCH.format(event="node.faults.unplug(1)")
    assert look(make_node("t4x2"), code) == ()


@pytest.mark.parametrize(
    ("event", "told"),
    [
        ("pass", []),
        ("node.faults.add_gpu('t4')", ["was added"]),
        ("node.faults.mig(0, ['1g.5gb'] * 7)", ["the MIG devices of GPU-"]),
    ],
)
def test_what_happens_while_the_inventory_is_being_read_is_a_change(
    event: str, told: list[str], make_node: MakeNode, look: Look
) -> None:
    found = look(
        make_node("a100x2-mig-mixed"),
        f"""
functions = gpu_functions(sysfs)
nvml = Nvml.open()
inventory = read_inventory(nvml, sysfs, proc)
{event}
before = of_inventory(inventory, functions)
answer = changes(before, fingerprint(nvml, inventory, sysfs))
""",
    )
    assert len(found) == len(told)
    assert all(part in text for part, text in zip(told, found, strict=True))
