"""GPUs are added and removed and MIG layouts change: no restart and no signal is needed."""

from __future__ import annotations

from gpuslice.codes import Code

from .conftest import MakeRig
from .rig import GPU, Rig, needs_root

pytestmark = needs_root


def wait_for_devices(rig: Rig, ids: set[str]) -> None:
    """Until exactly these devices are advertised."""
    rig.kubelet.wait_until(
        lambda: set(rig.kubelet.devices(GPU)) == ids, f"{len(ids)} devices of {GPU}"
    )


def test_a_new_mig_layout_is_advertised_and_other_gpus_are_not_affected(
    make_rig: MakeRig,
) -> None:
    rig = make_rig("a100x2-mig-mixed")
    small, large = "nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb"
    with rig.plugin("--mig-strategy=mixed", places={}) as plugin:
        rig.wait_for_resources(GPU, small, large, "nvidia.com/mig-2g.10gb")
        plugin.wait_for_code(Code.REGISTERED, times=4)
        [whole] = rig.kubelet.devices(GPU)
        gpu, shrunk = rig.kubelet.wait_for(GPU), rig.kubelet.wait_for(small)
        rig.node.faults.xid(1, 79)
        rig.wait_for_healthy(GPU, set())
        rig.node.faults.mig(0, ["1g.5gb"] * 7)
        rig.kubelet.wait_until(lambda: rig.kubelet.capacity(small) == 7, "seven")
        rig.kubelet.wait_until(
            lambda: rig.kubelet.allocatable(large) == 0, "the end of the old devices"
        )
        assert rig.healthy(small) == {mig.uuid for mig in rig.node.gpus()[0].mig}
        # The fault stays: no operator has requested a reset.
        assert rig.kubelet.devices(GPU) == {whole: "Unhealthy"}
        assert rig.kubelet.registrations == 4
        assert (rig.kubelet.endpoint(GPU), rig.kubelet.endpoint(small)) == (gpu, shrunk)
        assert plugin.logged(Code.HARDWARE_CHANGED) >= 1
        rig.node.faults.xid(0, 79)  # the new devices are watched
        rig.wait_for_healthy(small, set())


def test_a_gpu_is_added_and_another_drained(make_rig: MakeRig) -> None:
    rig = make_rig("v100x4")
    with rig.plugin(places={}) as plugin:
        rig.kubelet.wait_for(GPU)
        plugin.wait_for_code(Code.REGISTERED)
        gpus = [gpu.uuid for gpu in rig.node.gpus()]
        rig.node.faults.xid(0, 79)
        rig.node.faults.xid(1, 79)
        rig.wait_for_healthy(GPU, set(gpus[2:]))
        # One after the other: a scan during the changes would find some of them.
        new = rig.node.faults.add_gpu("v100").uuid
        wait_for_devices(rig, {*gpus, new})
        rig.node.faults.unbind(gpus[1], "vfio-pci")
        wait_for_devices(rig, {gpus[0], *gpus[2:], new})
        rig.node.faults.unplug(gpus[3])
        wait_for_devices(rig, {gpus[0], gpus[2], new})
        # The fault of GPU 0 stays.
        rig.wait_for_healthy(GPU, {gpus[2], new})
        assert rig.allocate(GPU, new).envs["NVIDIA_VISIBLE_DEVICES"] == new
        assert rig.kubelet.registrations == 1
        for change in ("went from nvidia to vfio-pci", "was added", "was removed"):
            assert plugin.logged(Code.HARDWARE_CHANGED, change) == 1


def test_a_gpu_that_was_removed_with_a_fault_is_healthy_when_it_returns(make_rig: MakeRig) -> None:
    rig = make_rig("v100x4")
    with rig.plugin(places={}) as plugin:
        rig.kubelet.wait_for(GPU)
        plugin.wait_for_code(Code.REGISTERED)
        stays, leaves, *others = (gpu.uuid for gpu in rig.node.gpus())
        rig.node.faults.xid(stays, 79)
        rig.node.faults.xid(leaves, 79)
        rig.wait_for_healthy(GPU, set(others))
        rig.node.faults.unplug(leaves)
        wait_for_devices(rig, {stays, *others})
        rig.node.faults.plug(leaves)
        rig.wait_for_healthy(GPU, {leaves, *others})
        assert rig.kubelet.devices(GPU)[stays] == "Unhealthy"
        rig.node.faults.xid(leaves, 79)  # it is watched like any other
        rig.wait_for_healthy(GPU, set(others))


def test_settings_that_did_not_fit_the_gpus_are_applied_as_soon_as_they_fit(
    make_rig: MakeRig,
) -> None:
    rig = make_rig("a100x2-mig-mixed")
    for gpu in (0, 1):
        rig.node.faults.mig(gpu, ["3g.20gb", "1g.5gb"])
    with rig.plugin(rig.config("flags: {migStrategy: none}"), places={}) as plugin:
        whole = rig.wait_for_resources(GPU)
        rig.config("flags: {migStrategy: single}")
        plugin.wait_for_code(Code.CONFIGURATION_INVALID)
        assert rig.advertised() == whole
        for gpu in (0, 1):
            rig.node.faults.mig(gpu, ["3g.20gb"] * 2)
        parts = {mig.uuid for gpu in rig.node.gpus() for mig in gpu.mig}
        rig.wait_for_healthy(GPU, parts)
        plugin.wait_for_code(Code.SETTINGS_APPLIED, '"migStrategy":"single"')
