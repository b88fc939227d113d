"""Where the kubelet has the cgroups of pods, in every layout."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuslice.cgroup_limits.directories import (
    NoCgroups,
    find_containers,
    find_kubepods,
    find_pod,
    limits_are_inherited,
)
from gpuslice.cgroup_limits.layout import pod_directories
from gpuslice.watchdog.cgroup_path import ContainerId, container_of

UID = "0f1a2b3c-4d5e-6f70-8192-a3b4c5d6e7f8"
ESCAPED = UID.replace("-", "_")
STATIC = "1234567890abcdef1234567890abcdef"
ID = "ab" * 32

LAYOUTS = {
    "cgroupfs, guaranteed": f"kubepods/pod{UID}/{ID}",
    "cgroupfs, burstable": f"kubepods/burstable/pod{UID}/{ID}",
    "cgroupfs, best effort": f"kubepods/besteffort/pod{UID}/{ID}",
    "cgroupfs below the kubelet's own root": f"kubelet/kubepods/burstable/pod{UID}/{ID}",
    "cgroupfs in a container of Docker": f"docker/{'cd' * 32}/kubelet/kubepods/pod{UID}/{ID}",
    "systemd, guaranteed": f"kubepods.slice/kubepods-pod{ESCAPED}.slice/cri-containerd-{ID}.scope",
    "systemd, burstable": (
        f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{ESCAPED}.slice/"
        f"cri-containerd-{ID}.scope"
    ),
    "systemd, CRI-O": (
        f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{ESCAPED}.slice/"
        f"crio-{ID}.scope"
    ),
    "systemd, kind": (
        "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
        f"kubelet-kubepods-burstable-pod{ESCAPED}.slice/cri-containerd-{ID}.scope"
    ),
    "systemd, kind, from the host of its nodes": (
        f"system.slice/docker-{'cd' * 32}.scope/kubelet.slice/kubelet-kubepods.slice/"
        f"kubelet-kubepods-pod{ESCAPED}.slice/cri-containerd-{ID}.scope"
    ),
}


def make(root: Path, *paths: str) -> Path:
    root.mkdir(exist_ok=True)
    (root / "cgroup.controllers").touch()
    for path in paths:
        (root / path).mkdir(parents=True)
    return root


@pytest.mark.parametrize("path", LAYOUTS.values(), ids=LAYOUTS)
def test_a_pod_and_its_containers_are_found(tmp_path: Path, path: str) -> None:
    root = make(tmp_path, path, "system.slice/ssh.service", "user.slice/user-0.slice")
    pod = find_pod(find_kubepods(root), UID)
    assert pod == (root / path).parent
    assert find_containers(pod) == {ID: root / path}
    # The watchdog finds the same pod from the other end.
    assert container_of(f"0::/{path}") == ContainerId(UID, ID)


def test_a_static_pod_is_found(tmp_path: Path) -> None:
    root = make(tmp_path, f"kubepods/burstable/pod{STATIC}")
    assert find_pod(find_kubepods(root), STATIC) == root / f"kubepods/burstable/pod{STATIC}"


def test_a_pod_without_a_cgroup_is_not_found(tmp_path: Path) -> None:
    root = make(tmp_path, f"kubepods/pod{UID}")
    assert find_pod(find_kubepods(root), STATIC) is None


def test_what_is_not_a_container_is_omitted(tmp_path: Path) -> None:
    pod = tmp_path / "pod"
    for name in ("init.scope", f"crio-conmon-{ID}.scope", ID[:-1], f"cri-containerd-{ID}.scope"):
        (pod / name).mkdir(parents=True)
    assert list(find_containers(pod)) == [ID]
    assert find_containers(tmp_path / "missing") == {}


@pytest.mark.parametrize(
    "place",
    [
        f"kubepods/pod{STATIC}/{ID}",  # a container with cgroups of its own
        "user.slice/user-1000.slice",
    ],
)
def test_cgroups_that_tenants_create_do_not_count(tmp_path: Path, place: str) -> None:
    root = make(tmp_path, "kubepods", f"{place}/kubepods/pod{UID}")
    assert find_kubepods(root) == (root / "kubepods",)
    assert find_pod(find_kubepods(root), UID) is None


def test_a_missing_mount_and_another_version_are_named(tmp_path: Path) -> None:
    with pytest.raises(NoCgroups, match="has no cgroups of version 2: mount"):
        find_kubepods(tmp_path)
    make(tmp_path, "system.slice")
    with pytest.raises(NoCgroups, match="not only the cgroup of this container"):
        find_kubepods(tmp_path)


def test_containers_outside_the_cgroups_of_their_pods_cannot_be_limited(tmp_path: Path) -> None:
    """The kubelet uses systemd, the container runtime does not."""
    joined = f"kubepods-burstable-pod{ESCAPED}.slice:cri-containerd:{ID}"
    root = make(tmp_path, f"kubepods.slice/kubepods-burstable-pod{ESCAPED}.slice", joined)
    with pytest.raises(NoCgroups, match="SystemdCgroup = true"):
        find_kubepods(root)


def test_limits_are_inherited_with_the_dmem_controller(tmp_path: Path) -> None:
    root = make(tmp_path)
    assert not limits_are_inherited(root / "missing")
    (root / "cgroup.controllers").write_text("cpu io memory pids\n")
    assert not limits_are_inherited(root)
    (root / "cgroup.controllers").write_text("cpu io memory pids misc dmem\n")
    assert limits_are_inherited(root)


@pytest.mark.parametrize("uid", ["", "../../etc", "a/b", UID + "/x", UID.upper()])
def test_a_uid_that_is_none_has_no_directory(uid: str) -> None:
    assert list(pod_directories("kubepods", uid)) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    uid=st.uuids(),
    other=st.uuids(),
    above=st.lists(st.sampled_from(["kubelet", "docker", "node1"]), max_size=3, unique=True),
    qos=st.sampled_from(["", "burstable", "besteffort"]),
    systemd=st.booleans(),
)
def test_any_prefix_leads_to_the_pod_and_to_no_other(
    tmp_path_factory: pytest.TempPathFactory,
    uid: UUID,
    other: UUID,
    above: list[str],
    qos: str,
    systemd: bool,
) -> None:
    names = [*above, "kubepods", *filter(None, [qos])]
    if systemd:
        slices = ["-".join(names[: depth + 1]) for depth in range(len(names))]
        slices.append("-".join([*names, f"pod{str(uid).replace('-', '_')}"]))
        path = "/".join(f"{name}.slice" for name in slices)
    else:
        path = "/".join([*names, f"pod{uid}"])
    root = make(tmp_path_factory.mktemp("cgroup"), path)
    kubepods = find_kubepods(root)
    assert find_pod(kubepods, str(uid)) == root / path
    if other != uid:
        assert find_pod(kubepods, str(other)) is None
