"""Static partitions of SMs with daemons that `gpuslice mps` runs."""

from __future__ import annotations

import pytest

from gpuslice.codes import Code
from gpuslice_sim.kubelet import Container, Pod

from .conftest import MakeRig
from .managed_node import node, program, served, wait_until_all_healthy
from .mps_programs import daemons
from .rig import GPU, RESOURCE, eventually, needs_root

pytestmark = [needs_root, pytest.mark.usefixtures("no_daemon_stays")]

VARIABLE = "CUDA_MPS_SM_PARTITION"
SETTINGS = (
    "sharing: {{memory: {{unit: 4GiB, reserve: 0, devices: 1, threads: {threads}, "
    "mps: {{mode: managed}}}}}}"
)


def test_containers_get_partitions_of_managed_daemons(make_rig: MakeRig) -> None:
    rig = make_rig("a100-40x8", driver=590, cdi=True)
    cdi = f"--cdi-directory={rig.directory / 'cdi'}"
    with node(rig, SETTINGS.format(threads="sm_partition"), "--bind=cdi", cdi) as mps:
        for name, units, sms in (("half", 5, 52), ("small", 1, 8)):
            pod = Pod(name, [Container("main", {RESOURCE: units})])
            rig.kubelet.admit(pod)
            answer = rig.kubelet.start_container(pod, "main")
            [device] = rig.contained(answer, "info")["devices"]
            assert device["sms"] == sms
            assert answer.envs[VARIABLE].startswith(device["uuid"])
        # The option of a daemon cannot change while it runs.
        before = daemons(rig)
        rig.config(SETTINGS.format(threads="proportional"))
        mps.wait_for_code(Code.MPS_STARTED, times=2)
        eventually(lambda: daemons(rig).values() != before.values(), "another daemon")
        wait_until_all_healthy(rig)
        pod = Pod("percent", [Container("main", {RESOURCE: 1})])
        rig.kubelet.admit(pod)
        answer = rig.kubelet.start_container(pod, "main")
        assert VARIABLE not in answer.envs
        [device] = rig.contained(answer, "info")["devices"]
        assert device["sms"] == 10


REPLICAS = """
flags: {{mpsRoot: {root}}}
sharing: {{mps: {{failRequestsGreaterThanOne: false, advertise: all, resources: [
  {{name: nvidia.com/gpu, replicas: 4, devices: 2, threads: sm_partition}}]}}}}
"""


def test_replicas_get_partitions(make_rig: MakeRig) -> None:
    rig = make_rig("a100-40x8", driver=590, cdi=True)
    cdi = f"--cdi-directory={rig.directory / 'cdi'}"
    rig.config(REPLICAS.format(root=rig.mps_root))
    with served(rig), program(rig, "agent", "--memory-devices=none", "--bind=cdi", cdi):
        rig.kubelet.wait_for(GPU)
        rig.kubelet.wait_until(lambda: len(rig.healthy(GPU)) == 8 + 6, "all replicas")
        for name, replicas, sms in (("one", 1, 24), ("two", 2, 52)):
            pod = Pod(name, [Container("main", {GPU: replicas})])
            rig.kubelet.admit(pod)
            answer = rig.kubelet.start_container(pod, "main")
            [device] = rig.contained(answer, "info")["devices"]
            assert device["sms"] == sms
            assert answer.envs[VARIABLE].startswith(device["uuid"])
