"""A node in a container of another node advertises the GPUs that the outer node allocated."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from gpuslice.codes import Code
from gpuslice_sim.kubelet import Container, Kubelet, Pod
from tests.timing import timing

from .conftest import MakeRig
from .rig import AGENT, GPU, PLUGIN, RESOURCE, Rig

VARIABLE = "NVIDIA_ALLOCATED_DEVICES"


@pytest.fixture
def host(make_rig: MakeRig) -> Rig:
    return make_rig("v100x4")


@pytest.fixture
def guest(host: Rig) -> Iterator[Rig]:
    """Another kubelet on the same GPUs, like in a container that is a node."""
    directory = host.directory / "guest"
    directory.mkdir()
    with Kubelet(directory / "dp") as kubelet:
        yield Rig(host.node, kubelet, directory)


@pytest.mark.parametrize(("outer", "inner"), [(PLUGIN, AGENT), (AGENT, PLUGIN)])
def test_a_guest_advertises_exactly_the_gpus_that_its_host_allocated(
    host: Rig, guest: Rig, outer: str, inner: str
) -> None:
    flags = ("--nested=host", f"--nested-dir={host.directory / 'nested'}")
    with host.plugin(*flags, entry=outer):
        host.kubelet.wait_for(GPU)
        pod = Pod("node", [Container("main", {GPU: 2})])
        [given] = host.kubelet.admit(pod)
        answer = host.kubelet.start_container(pod, "main")
        everything = {gpu.uuid for gpu in host.node.gpus()}
        assert set(answer.envs["NVIDIA_VISIBLE_DEVICES"].split(",")) == everything
        assert set(answer.envs[VARIABLE].split(",")) == set(given.ids)
        [mount] = answer.mounts
        assert (mount.container_path, mount.read_only) == ("/gpuslice/gpu.env", True)
        assert answer.envs[f"{VARIABLE}_FILE"] == mount.container_path
        # From the file, which a container has mounted.
        with guest.plugin("--nested=guest", f"--nested-env={mount.host_path}", entry=inner):
            assert guest.wait_for_resources(GPU) == {GPU: sorted(given.ids)}
            [inside] = guest.kubelet.admit(Pod("p", [Container("main", {GPU: 1})]))
            assert inside.response.envs["NVIDIA_VISIBLE_DEVICES"] in given.ids
            assert VARIABLE not in inside.response.envs
        # From the variable, if nothing is mounted.
        guest.kubelet.restart()
        with guest.plugin(
            "--nested=guest",
            f"--nested-env={guest.directory / 'none'}",
            entry=inner,
            env=dict(answer.envs),
        ):
            assert guest.wait_for_resources(GPU) == {GPU: sorted(given.ids)}


def test_a_host_that_mounts_no_file_writes_none(host: Rig) -> None:
    directory = _a_file(host.directory / "file")
    with host.plugin("--nested=host", "--nested-file=none", f"--nested-dir={directory}"):
        host.kubelet.wait_for(GPU)
        uuid = host.node.gpus()[2].uuid
        answer = host.allocate(GPU, uuid)
        assert answer.envs[VARIABLE] == uuid
        assert len(answer.envs["NVIDIA_VISIBLE_DEVICES"].split(",")) == 4
        assert not answer.mounts


def test_a_guest_waits_for_its_list_if_it_is_told_to(guest: Rig) -> None:
    """The container that is the node writes the list in its own time, and not all at once."""
    file = guest.directory / "gpu.env"
    one, two = (gpu.uuid for gpu in guest.node.gpus()[1:3])
    flags = ("--nested=guest", f"--nested-env={file}", "--fail-on-init-error=false")
    with guest.plugin(*flags) as agent:
        [line] = agent.wait_for_code(Code.WAITING_FOR_GPUS, "No such file")
        assert str(file) in line
        file.touch()
        agent.wait_for_code(Code.WAITING_FOR_GPUS, "it is empty")
        assert guest.kubelet.registrations == 0
        file.write_text(f'declare -x {VARIABLE}="{one}\n{two}"\n')
        assert guest.wait_for_resources(GPU) == {GPU: sorted([one, two])}
        assert agent.logged(Code.WAITING_FOR_GPUS) == 2


def test_a_guest_follows_its_list_while_it_is_written(guest: Rig) -> None:
    file = guest.directory / "gpu.env"
    gpus = [gpu.uuid for gpu in guest.node.gpus()]
    file.write_text(f"{gpus[0]}\n")
    with guest.plugin("--nested=guest", f"--nested-env={file}"):
        guest.kubelet.wait_for(GPU)
        with file.open("a") as more:
            more.write(f"{gpus[3]}\n")
        guest.kubelet.wait_until(
            lambda: set(guest.kubelet.devices(GPU)) == {gpus[0], gpus[3]}, "both GPUs advertised"
        )


def test_a_guest_without_mig_rights_is_told_that_they_may_be_missing(guest: Rig) -> None:
    file = guest.directory / "gpu.env"
    file.write_text(f"{VARIABLE}=MIG-2cf74da6-cb27-5bbe-be02-6da14d711aca\n")
    with guest.plugin("--nested=guest", f"--nested-env={file}", "--mig-strategy=mixed") as agent:
        assert agent.wait() == 1
        assert "NVIDIA_MIG_MONITOR_DEVICES=all" in agent.output()


def test_a_guest_that_exits_without_a_list_says_how_to_wait_for_it(guest: Rig) -> None:
    with guest.plugin("--nested=guest", f"--nested-env={guest.directory / 'none'}") as agent:
        assert agent.wait() == 1
        assert "--fail-on-init-error=false" in agent.output()


def test_shares_by_mps_for_nested_nodes_end_the_agent_with_the_reason(host: Rig) -> None:
    text = "sharing: {mps: {resources: [{name: gpu, replicas: 4, nested: host}]}}"
    with host.plugin("--mps-root=/run/nvidia/mps", host.config(text)) as agent:
        assert agent.wait() == 1
        assert "sharing.mps.resources[0].nested: 'host' is not valid" in agent.output()
    assert host.kubelet.registrations == 0


def test_a_guest_can_share_its_gpus(host: Rig, guest: Rig) -> None:
    one, two = (gpu.uuid for gpu in host.node.gpus()[1:3])
    file = guest.directory / "gpu.env"
    file.write_text(f"# from the host\nexport {VARIABLE}='{one},{two}'\n")
    text = f"""
flags: {{nested: guest, nestedEnv: {file}}}
sharing: {{timeSlicing: {{resources: [{{name: gpu, devices: [{one}], replicas: 3}}]}}}}
"""
    with guest.plugin(guest.config(text)):
        advertised = guest.wait_for_resources(GPU)
        assert advertised == {GPU: sorted([*(f"{one}::{n}" for n in range(3)), two])}


def _foreign(path: Path) -> None:
    path.write_text(f"{VARIABLE}=GPU-00000000-0000-0000-0000-000000000000\n")


def _fifo(path: Path) -> None:
    os.mkfifo(path)


INVALID: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: None, "nested-env"),
    "of another node": (_foreign, "The list belongs to another node"),
    "empty": (lambda path: path.write_text(""), "it is empty"),
    "a program": (lambda path: path.write_text(f"{VARIABLE}=$(reboot)\n"), "neither the UUID"),
    "binary": (lambda path: path.write_bytes(b"\xff\x00\xfe"), "not UTF-8"),
    "huge": (lambda path: path.write_text("GPU-" * 40_000), "bytes"),
    "a pipe": (_fifo, "not a regular file"),
    "a directory": (lambda path: path.mkdir(), "not a regular file"),
}


@pytest.mark.parametrize("kind", INVALID)
def test_an_invalid_file_ends_the_guest_with_a_reason(host: Rig, kind: str) -> None:
    make, because = INVALID[kind]
    file = host.directory / "gpu.env"
    make(file)
    with host.plugin("--nested=guest", f"--nested-env={file}") as guest:
        assert guest.wait() == 1
        assert because in guest.output()
        assert "Traceback" not in guest.output()
    assert host.kubelet.registrations == 0


def test_a_file_that_is_invalid_at_a_reload_does_not_change_the_devices_of_the_guest(
    host: Rig,
) -> None:
    file = host.directory / "gpu.env"
    one = host.node.gpus()[1].uuid
    file.write_text(f"{VARIABLE}={one}\n")
    flags = ("--nested=guest", f"--nested-env={file}")
    with host.plugin(*flags, host.config("")) as guest:
        host.kubelet.wait_for(GPU)
        _foreign(file)
        host.config("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}")
        guest.wait_for_code(Code.CONFIGURATION_INVALID, "another node")
        assert set(host.kubelet.devices(GPU)) == {one}
        assert guest.returncode is None


def test_a_host_with_memory_units_gets_a_warning_that_nested_does_not_apply_to_them(
    host: Rig,
) -> None:
    directory = host.directory / "nested"
    flags = ("--nested=host", f"--nested-dir={directory}")
    with host.agent(*flags, host.config("sharing: {memory: {devices: [0]}}")) as agent:
        host.wait_for_resources(RESOURCE, GPU)
        [warning] = agent.wait_for_code(Code.CONFIGURATION_WARNING, "nested")
        assert f"({RESOURCE})" in warning
        assert "memory-devices" in warning
        assert VARIABLE not in host.admit(1).response.envs
        [given] = host.kubelet.admit(Pod("node", [Container("main", {GPU: 1})]))
        assert given.response.envs[VARIABLE] == given.ids[0]
    with host.plugin(*flags, name="without memory") as agent:
        agent.wait_for_code(Code.ADVERTISED)
        assert agent.logged(Code.CONFIGURATION_WARNING) == 0


def _a_file(path: Path) -> Path:
    path.write_text("")
    return path / "nested"


def test_a_host_that_cannot_write_its_lists_exits_before_it_registers(host: Rig) -> None:
    directory = _a_file(host.directory / "file")
    with host.plugin("--nested=host", f"--nested-dir={directory}") as agent:
        assert agent.wait() == 1
        assert f"nested-dir: '{directory}' is not valid" in agent.output()
        assert "Not a directory" in agent.output()
        assert "mount a directory of the host at the same path, writable" in agent.output()
        assert "Traceback" not in agent.output()
    assert host.kubelet.registrations == 0


def test_a_node_that_is_not_a_host_needs_no_directory_for_lists(host: Rig) -> None:
    directory = _a_file(host.directory / "file")
    with host.plugin(f"--nested-dir={directory}"):
        host.kubelet.wait_for(GPU)
        assert not directory.exists()


def test_a_directory_that_cannot_be_used_is_rejected_at_a_reload(host: Rig) -> None:
    directory = _a_file(host.directory / "file")
    with host.plugin(f"--nested-dir={directory}", host.config("")) as agent:
        host.kubelet.wait_for(GPU)
        host.config("flags: {nested: host}")
        agent.wait_for_code(Code.CONFIGURATION_INVALID, "nested-dir")
        agent.wait_for_code(Code.RECONCILED)
        assert VARIABLE not in host.allocate(GPU, host.node.gpus()[0].uuid).envs


def test_a_list_that_cannot_be_written_rejects_the_container_with_a_reason(host: Rig) -> None:
    directory = host.directory / "nested"
    directory.mkdir()
    with host.plugin("--nested=host", f"--nested-dir={directory}"):
        host.kubelet.wait_for(GPU)
        gpus = {gpu.uuid for gpu in host.node.gpus()}
        shutil.rmtree(directory)
        directory.write_text("")
        with pytest.raises(grpc.RpcError) as refused:
            host.allocate(GPU, min(gpus))
        details = refused.value.details() or ""
        assert details.startswith(f"{Code.NESTED_FILE_NOT_WRITTEN}: ")
        assert f'"{GPU}": nested-dir: {str(directory)!r} is not valid' in details
        assert "writable" in details
        assert "Errno" not in details
        # Devices stay healthy, and no restart is needed after the repair.
        assert host.healthy(GPU) == gpus
        directory.unlink()
        assert host.allocate(GPU, min(gpus)).envs[VARIABLE] == min(gpus)


def test_lists_that_no_container_uses_are_removed(host: Rig) -> None:
    directory = host.directory / "nested"
    flags = ("--nested=host", f"--nested-dir={directory}")
    with host.plugin(*flags, env=timing(nested_file_scan=0.2, nested_file_keep=0.5)) as plugin:
        host.kubelet.wait_for(GPU)
        pods = [Pod(name, [Container("main", {GPU: 1})]) for name in ("stays", "ends")]
        stays, ends = (
            Path(host.kubelet.admit(pod)[0].response.mounts[0].host_path) for pod in pods
        )
        host.kubelet.remove(pods[1])
        plugin.wait_for_code(Code.NESTED_FILE_REMOVED, ends.name)
        assert not ends.exists()
        assert stays.exists()
        # The kubelet may give the same GPU again.
        [again] = host.kubelet.admit(pods[1])
        assert Path(again.response.mounts[0].host_path).exists()
