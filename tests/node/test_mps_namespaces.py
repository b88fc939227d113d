"""Namespaces of MPS for containers: `gpuslice mps` and the agent on the simulated driver 615."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from gpuslice.codes import Code
from gpuslice.kubelet.api import deviceplugin_pb2 as api
from gpuslice_sim.kubelet import Container, Pod, StartError
from gpuslice_sim.mps.launch import wait_until_gone
from gpuslice_sim.mps.simcuda import HeldClient
from gpuslice_sim.process import BackgroundProcess
from tests.surroundings import free_address

from .cgroups import container, needs_cgroups
from .conftest import MakeRig
from .managed_node import GIB, program, served, uuids, wait_until_all_healthy
from .mps_programs import PATIENCE, REAL, daemons, replaced
from .rig import ALL, RESOURCE, Rig, eventually, needs_root
from .test_nvidia_metrics import figure

pytestmark = [needs_root, pytest.mark.usefixtures("no_daemon_stays")]

SMS = 40  # of a T4
THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
MEMORY = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
PIPE = "CUDA_MPS_PIPE_DIRECTORY"


def config(bind: str = "cdi", namespaces: str = "auto") -> str:
    mps = f"{{mode: managed, namespaces: {namespaces}}}"
    return f"flags: {{bind: {bind}}}\nsharing: {{memory: {{reserve: 1GiB, mps: {mps}}}}}\n"


@pytest.fixture
def rig(make_rig: MakeRig) -> Rig:
    return make_rig("t4x2", driver=615, cdi=True)


def agent(rig: Rig, *args: str) -> BackgroundProcess:
    return program(rig, "agent", ALL, f"--cdi-directory={rig.directory / 'cdi'}", *args)


@contextmanager
def node(rig: Rig, text: str = "") -> Iterator[tuple[BackgroundProcess, BackgroundProcess]]:
    rig.config(text or config())
    with served(rig) as mps, agent(rig) as running:
        wait_until_all_healthy(rig)
        yield mps, running


def admitted(rig: Rig, units: int, name: str = "pod", **env: str) -> Pod:
    pod = Pod(name, [Container("main", {RESOURCE: units}, env=env)])
    rig.kubelet.admit(pod)
    return pod


def started(rig: Rig, pod: Pod) -> api.ContainerAllocateResponse:
    return rig.kubelet.start_container(pod, "main")


def changed(
    answer: api.ContainerAllocateResponse, **env: str | None
) -> api.ContainerAllocateResponse:
    """A program that changes its own environment."""
    copy = api.ContainerAllocateResponse()
    copy.CopyFrom(answer)
    for name, value in env.items():
        if value is None:
            copy.envs.pop(name)
        else:
            copy.envs[name] = value
    return copy


def limits(rig: Rig, answer: api.ContainerAllocateResponse) -> tuple[int, int | None]:
    """SMs and bytes of a CUDA program."""
    [device] = rig.contained(answer, "info")["devices"]
    return device["sms"], device["limit_bytes"]


def namespaces(rig: Rig, gpu: str) -> dict[str, dict[str, str]]:
    """As the control program prints them, without the default one."""
    done = subprocess.run(
        [rig.node.bin / "nvidia-cuda-mps-control", "namespace", "list", "--format=csv"],
        env={PIPE: str(rig.mps_root / gpu / "pipe")},
        capture_output=True,
        text=True,
        check=False,
    )
    rows = csv.DictReader(done.stdout.splitlines(), skipinitialspace=True)
    return {row["name"]: row for row in rows if row["name"] != "default"}


def gpu_of(answer: api.ContainerAllocateResponse) -> str:
    return answer.envs["CUDA_VISIBLE_DEVICES"]


def test_a_container_has_its_own_namespace_and_nothing_else_of_the_daemon(rig: Rig) -> None:
    with node(rig) as (mps, running):
        assert mps.logged(Code.MPS_STARTED, "namespaces=True") == 2
        answer = started(rig, admitted(rig, 7))
        gpu = gpu_of(answer)
        [(name, row)] = namespaces(rig, gpu).items()
        assert (row["pinned-memory-limit"], row["active-thread-percentage"]) == ("7G", "50.0")
        directory = f"/mps/{gpu}/pipe/gpu/{name}"
        assert answer.envs[PIPE] == directory
        places = {mount.container_path: mount.host_path for mount in answer.mounts}
        place = rig.mps_root / gpu
        assert places == {
            directory: str(place / "pipe" / "gpu" / name),
            "/dev/shm": str(place / "shm"),
        }
        assert limits(rig, answer) == (20, 7 * GIB)
        assert running.logged(Code.LIMITS_BOUND, "namespace=True") == 1


@pytest.mark.parametrize(
    ("changes", "memory"),
    [
        ({THREADS: "100", MEMORY: "0=14G"}, 2 * GIB),
        ({THREADS: None, MEMORY: None}, 2 * GIB),
        # NVIDIA measured that this drops the memory limit. The driver's own limits hold then.
        ({THREADS: None, MEMORY: "9=1G"}, None),
    ],
    ids=["raised", "unset", "foreign-gpu"],
)
def test_a_program_cannot_exceed_the_threads_of_its_namespace(
    rig: Rig, changes: dict[str, str | None], memory: int | None
) -> None:
    with node(rig):
        answer = started(rig, admitted(rig, 2))
        assert limits(rig, answer) == (4, 2 * GIB)
        assert limits(rig, changed(answer, **changes)) == (4, memory)


def test_without_namespaces_a_program_raises_its_threads(rig: Rig) -> None:
    with node(rig, config(namespaces="off")):
        answer = started(rig, admitted(rig, 2))
        assert limits(rig, changed(answer, **{THREADS: None}))[0] == SMS


def test_a_program_that_finds_another_socket_of_the_daemon_gets_little(rig: Rig) -> None:
    with node(rig):
        answer = started(rig, admitted(rig, 14))
        gpu = gpu_of(answer)
        assert limits(rig, answer) == (SMS, 14 * GIB)
        whole = changed(answer, **{PIPE: f"/mps/{gpu}/pipe"})
        whole.mounts.add(
            host_path=str(rig.mps_root / gpu / "pipe"), container_path=f"/mps/{gpu}/pipe"
        )
        assert limits(rig, changed(whole, **{THREADS: None, MEMORY: None})) == (4, GIB)


def test_containers_on_one_gpu_have_different_limits(rig: Rig) -> None:
    with node(rig):
        pods = [admitted(rig, units, f"pod-{units}") for units in (2, 5, 7)]
        answers = [started(rig, pod) for pod in pods]
        assert len({gpu_of(answer) for answer in answers}) < len(answers)
        for units, sms, answer in zip((2, 5, 7), (4, 14, 20), answers, strict=True):
            assert limits(rig, changed(answer, **{THREADS: "100"})) == (sms, units * GIB)


def test_a_daemon_that_is_killed_comes_back_with_the_namespaces_of_its_containers(
    rig: Rig,
) -> None:
    with node(rig) as (_, running):
        pod = admitted(rig, 7)
        answer = started(rig, pod)
        gpu = gpu_of(answer)
        before = namespaces(rig, gpu)
        pid = daemons(rig)[gpu]
        os.kill(pid, signal.SIGKILL)
        wait_until_gone(pid)
        eventually(lambda: namespaces(rig, gpu) == before, "the same namespaces")
        running.wait_for_code(Code.MPS_NAMESPACE_PUT, "count=1")
        # The directory of the running container leads to the new daemon.
        assert limits(rig, changed(answer, **{THREADS: None})) == (20, 7 * GIB)
        wait_until_all_healthy(rig)
        assert limits(rig, started(rig, pod)) == (20, 7 * GIB)


def test_a_container_that_starts_again_right_after_its_daemon_was_killed_has_its_namespace(
    rig: Rig,
) -> None:
    with node(rig):
        pod = admitted(rig, 7)
        gpu = gpu_of(started(rig, pod))
        pid = daemons(rig)[gpu]
        os.kill(pid, signal.SIGKILL)
        wait_until_gone(pid)
        answers: list[api.ContainerAllocateResponse] = []

        def starts() -> bool:
            try:
                answers.append(started(rig, pod))
            except StartError:
                return False  # it waits
            return True

        eventually(starts, "the container starts")
        assert limits(rig, changed(answers[0], **{THREADS: None})) == (20, 7 * GIB)


def test_an_agent_that_is_killed_finds_the_namespaces_again(rig: Rig) -> None:
    rig.config(config())
    with served(rig):
        with agent(rig) as first:
            wait_until_all_healthy(rig)
            pod, late = admitted(rig, 7), admitted(rig, 2, "late")
            answer = started(rig, pod)
            gpu = gpu_of(answer)
            first.kill()
        with agent(rig):
            wait_until_all_healthy(rig)
            assert limits(rig, started(rig, late))[0] == 4
            assert limits(rig, started(rig, pod)) == (20, 7 * GIB)
            rig.kubelet.remove(pod)
            left = 1 if gpu_of(started(rig, late)) == gpu else 0
            eventually(lambda: len(namespaces(rig, gpu)) == left, "the namespace is removed")


def test_a_program_that_is_killed_leaves_daemons_with_namespaces_that_the_next_one_adopts(
    rig: Rig,
) -> None:
    rig.config(config())
    with agent(rig):
        with program(rig, "mps") as first:
            wait_until_all_healthy(rig)
            answer = started(rig, admitted(rig, 7))
            before = daemons(rig), namespaces(rig, gpu_of(answer))
            first.kill()
        with served(rig) as second:
            second.wait_for_code(Code.MPS_ADOPTED, times=2)
            wait_until_all_healthy(rig)
            assert (daemons(rig), namespaces(rig, gpu_of(answer))) == before
            assert limits(rig, answer) == (20, 7 * GIB)
    assert daemons(rig) == {}
    assert not list(rig.mps_root.glob("*/.namespaces"))


def test_a_container_waits_while_its_namespace_cannot_be_made(rig: Rig) -> None:
    control = rig.node.bin / "nvidia-cuda-mps-control"
    with node(rig):
        pod = admitted(rig, 7)
        refuses = 'case "$1$2" in namespacecreate) echo no more; exit 1;; esac'
        real = replaced(control, f'{refuses}\nexec {REAL} "$@"')
        with pytest.raises(StartError, match=f"{Code.MPS_NAMESPACE_FAILED}.*no more"):
            started(rig, pod)
        real.rename(control)
        assert limits(rig, started(rig, pod)) == (20, 7 * GIB)


@pytest.mark.parametrize("driver", [570, 590])
def test_older_drivers_limit_containers_by_variables(make_rig: MakeRig, driver: int) -> None:
    rig = make_rig("t4x2", driver=driver, cdi=True)
    with node(rig) as (mps, _):
        assert mps.logged(Code.MPS_STARTED, "namespaces=False") == 2
        answer = started(rig, admitted(rig, 7))
        assert answer.envs[PIPE] == f"/mps/{gpu_of(answer)}/pipe"
        assert limits(rig, answer) == (20, 7 * GIB)


def test_namespaces_that_are_required_and_missing_start_no_daemon(make_rig: MakeRig) -> None:
    rig = make_rig("t4x2", driver=570, cdi=True)
    rig.config(config(namespaces="require"))
    with program(rig, "mps") as mps:
        assert mps.wait(PATIENCE) == 1
        assert Code.MPS_NAMESPACES_UNAVAILABLE in mps.output()
        assert "615 and newer have them" in mps.output()
    assert daemons(rig) == {}


# Programs of a driver that is not as documented.
DIFFERENT = {
    "refused": 'case "$1" in namespace|server) echo not today; exit 1;; esac',
    "silent": 'case "$1" in server) exit 0;; esac',
    "other-table": 'case "$1" in namespace) echo Name: default; exit 0;; esac',
    "other-values": 'case "$1$2" in serverset|namespaceset) exit 0;; '
    f'namespacelist) {REAL} "$@" | sed "s/10.0/100.0/"; exit 0;; esac',
    "no-option": 'case "$*" in *"-p 3"*) echo usage; exit 1;; esac',
}


@pytest.mark.parametrize("how", sorted(DIFFERENT))
def test_a_driver_that_is_not_as_documented_is_used_without_namespaces(rig: Rig, how: str) -> None:
    replaced(rig.node.bin / "nvidia-cuda-mps-control", f'{DIFFERENT[how]}\nexec {REAL} "$@"')
    with node(rig) as (mps, _):
        assert mps.logged(Code.MPS_NAMESPACES_UNAVAILABLE) == 2
        assert mps.logged(Code.MPS_STARTED, "namespaces=False") == 2
        answer = started(rig, admitted(rig, 7))
        assert answer.envs[PIPE] == f"/mps/{gpu_of(answer)}/pipe"
        assert limits(rig, answer) == (20, 7 * GIB)


def test_an_agent_without_cdi_uses_no_daemon_with_namespaces(rig: Rig) -> None:
    """Its containers would be in the default namespace."""
    rig.config(config())
    with served(rig), program(rig, "agent", ALL, "--bind=env") as running:
        running.wait_for_code(Code.MPS_UNAVAILABLE, "set mps-namespaces and bind")
        rig.kubelet.wait_for(RESOURCE)
        assert rig.healthy_units(uuids(rig)[0]) == 0


def test_turning_namespaces_off_replaces_the_daemons(rig: Rig) -> None:
    with node(rig) as (mps, _):
        pod = admitted(rig, 7)
        started(rig, pod)
        rig.config(config(namespaces="off"))
        mps.wait_for_code(Code.MPS_STARTED, "namespaces=False", times=2)
        wait_until_all_healthy(rig)
        answer = started(rig, pod)
        assert answer.envs[PIPE] == f"/mps/{gpu_of(answer)}/pipe"
        assert limits(rig, answer) == (20, 7 * GIB)


def test_limits_of_the_default_namespace_that_somebody_raised_are_set_right(rig: Rig) -> None:
    with node(rig) as (mps, _):
        gpu = uuids(rig)[0]
        env = {PIPE: str(rig.mps_root / gpu / "pipe")}
        control = rig.node.bin / "nvidia-cuda-mps-control"
        words = ["namespace", "set", "default", "--server=gpu", "--active-thread-percentage=90"]
        subprocess.run([control, *words], env=env, check=True)
        mps.wait_for_code(Code.MPS_DEFAULT_CHANGED, f"daemon={gpu}", timeout=PATIENCE)


@pytest.mark.parametrize(("driver", "work"), [(615, True), (570, False)])
def test_label_and_metric_tell_whether_containers_are_in_namespaces(
    make_rig: MakeRig, driver: int, work: bool
) -> None:
    rig = make_rig("t4x2", driver=driver, cdi=True)
    address, labels = free_address(), rig.directory / "gfd"
    output = f"flags: {{gfd: {{outputFile: {labels}}}, bind: cdi}}"
    rig.config(config().replace("flags: {bind: cdi}", output))
    flags = ("--labels=file", f"--metrics-address={address}")
    with served(rig), agent(rig, *flags):
        wait_until_all_healthy(rig)
        line = f"gpuslice.io/limits.namespaces={str(work).lower()}"
        eventually(lambda: labels.exists() and line in labels.read_text(), line)
        assert figure(address, "gpuslice_mps_namespaces") == work


@needs_cgroups
def test_the_watchdog_ends_a_process_in_a_namespace_by_mps(rig: Rig) -> None:
    rig.config(config())
    logs = rig.directory / "containers"
    logs.mkdir()
    flags = ("--watchdog-mode=terminate", "--watchdog-grace=0s", "--memory-limits=off")
    with served(rig), agent(rig, f"--container-logs={logs}", *flags) as running:
        wait_until_all_healthy(rig)
        pod = admitted(rig, 2)
        answer = started(rig, pod)
        [place] = [m.host_path for m in answer.mounts if m.container_path == answer.envs[PIPE]]
        # A socket has a path of at most 107 bytes.
        short = rig.directory / "n"
        short.symlink_to(place)
        env = dict(answer.envs) | {PIPE: str(short)}
        with container(logs, pod, "main") as inside, ExitStack() as stack:
            held = []
            for _ in range(2):
                simcuda = rig.node.bin / "simcuda"
                held.append(stack.enter_context(HeldClient(simcuda, "--alloc", "1500MiB", env=env)))
                held[-1].ready()
                inside.add(held[-1].pid)
            assert held[1].next_report()["error"] == "CUDA_ERROR_MPS_CLIENT_TERMINATED"
            [line] = running.wait_for_code(Code.PROCESS_TERMINATED)
            assert f"pid={held[1].pid}" in line
            assert held[0].stop() == 0
            assert running.logged(Code.PROCESS_KILLED) == 0
