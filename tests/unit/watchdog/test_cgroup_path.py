"""/proc/<pid>/cgroup on every kind of node -> pod and container."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.watchdog.cgroup_path import ContainerId, container_of

UID = "0f5b8c9a-1d2e-4f3a-8b7c-6d5e4f3a2b1c"
SYSTEMD_UID = UID.replace("-", "_")
ID = "4e1b" * 16
OTHER = "ab12" * 16
STATIC_UID = "0123456789abcdef0123456789abcdef"
EXPECTED = ContainerId(UID, ID)

BURSTABLE_SLICE = (
    f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SYSTEMD_UID}.slice"
)
PATHS = {
    "containerd, systemd": f"{BURSTABLE_SLICE}/cri-containerd-{ID}.scope",
    "containerd, systemd, guaranteed": (
        f"/kubepods.slice/kubepods-pod{SYSTEMD_UID}.slice/cri-containerd-{ID}.scope"
    ),
    "containerd, cgroupfs": f"/kubepods/burstable/pod{UID}/{ID}",
    "containerd, cgroupfs, guaranteed": f"/kubepods/pod{UID}/{ID}",
    "containerd without systemd under a kubelet with it": (
        f"/system.slice/containerd.service/kubepods-besteffort-pod{SYSTEMD_UID}.slice"
        f":cri-containerd:{ID}"
    ),
    "CRI-O, systemd": f"{BURSTABLE_SLICE}/crio-{ID}.scope",
    "CRI-O, systemd, container below the scope": f"{BURSTABLE_SLICE}/crio-{ID}.scope/container",
    "CRI-O, cgroupfs": f"/kubepods/besteffort/pod{UID}/crio-{ID}",
    "Docker, systemd": f"{BURSTABLE_SLICE}/docker-{ID}.scope",
    "a container that makes cgroups": f"{BURSTABLE_SLICE}/cri-containerd-{ID}.scope/a/b",
    "a cgroup namespace, systemd": (
        f"/../../../kubepods-burstable.slice/kubepods-burstable-pod{SYSTEMD_UID}.slice"
        f"/cri-containerd-{ID}.scope"
    ),
    "a cgroup namespace, cgroupfs": f"/../../../burstable/pod{UID}/{ID}",
    "a cgroup namespace, cgroupfs, same class": f"/../../pod{UID}/{ID}",
    "the kubelet of a nested node": (
        "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice"
        f"/kubelet-kubepods-burstable-pod{SYSTEMD_UID}.slice/cri-containerd-{ID}.scope"
    ),
    "below the cgroup of the machine": f"/machine/node-1/kubepods/burstable/pod{UID}/{ID}",
}


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_a_process_of_a_container_is_found_by_its_cgroup(path: str) -> None:
    assert container_of(f"0::{path}\n") == EXPECTED


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_cgroup_v1_names_the_container_in_some_hierarchies(path: str) -> None:
    text = f"12:pids:{path}\n11:cpu,cpuacct:{path}\n1:name=systemd:{path}\n9:rdma:/\n0::/\n"
    assert container_of(text) == EXPECTED


def test_a_static_pod_has_a_hash_as_uid() -> None:
    path = f"/kubepods/burstable/pod{STATIC_UID}/{ID}"
    assert container_of(f"0::{path}") == ContainerId(STATIC_UID, ID)


def test_the_outermost_container_counts() -> None:
    """Whoever is root in it can name inner cgroups after the pods of others."""
    inner = f"/kubepods/burstable/pod{UID[::-1]}/{OTHER}"
    for name in ("containerd, systemd", "containerd, cgroupfs"):
        assert container_of(f"0::{PATHS[name]}{inner}") == EXPECTED


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/init.scope",
        "/system.slice/nvidia-mps.service",
        f"/docker/{ID}",
        f"/system.slice/docker-{ID}.scope",
        # A user of the node with cgroups of their own.
        f"/user.slice/user-1000.slice/pod{UID}/{ID}",
        f"/../../../../user.slice/user-1000.slice/pod{UID}/{ID}",
        f"/user.slice/user-1000.slice/kubepods/burstable/pod{UID}/{ID}",
        # The monitor of a container, and the pod itself.
        f"{BURSTABLE_SLICE}/crio-conmon-{ID}.scope",
        BURSTABLE_SLICE,
        f"/kubepods/burstable/pod{UID}",
        # Not an id.
        f"/kubepods/burstable/pod{UID}/{ID[:-1]}",
        f"/kubepods/burstable/pod{UID}/{ID}0",
        f"/kubepods/burstable/podx{UID}/{ID}",
        # Something else is in the pod, and names the container below.
        f"/kubepods/burstable/pod{UID}/other/{ID}",
    ],
)
def test_whatever_is_no_container_of_a_pod_is_none(path: str) -> None:
    assert container_of(f"0::{path}\n") is None


def test_hierarchies_that_disagree_are_not_certain() -> None:
    text = f"2:pids:/kubepods/pod{UID}/{ID}\n1:cpu:/kubepods/pod{UID}/{OTHER}\n"
    assert container_of(text) is None


@given(st.text())
def test_any_text_is_a_container_or_none(text: str) -> None:
    container_of(text)


@given(st.lists(st.sampled_from([*PATHS.values(), "/", "..", "x"])), st.text("/.:-_\n", max_size=9))
def test_any_mixture_of_paths_is_a_container_or_none(paths: list[str], glue: str) -> None:
    found = container_of("0::" + glue.join(paths))
    assert found in (None, EXPECTED)
