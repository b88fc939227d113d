"""The share of threads of a container by an annotation of its pod."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from gpuslice.codes import Code
from gpuslice_sim.kubelet import Container, Pod, StartError
from gpuslice_sim.mps.launch import MpsDaemon
from gpuslice_sim.process import BackgroundProcess
from tests.unit.cluster.kubernetes import Kubernetes

from .conftest import MakeRig
from .rig import ALL, RESOURCE, Rig, eventually

THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


@pytest.fixture
def kubernetes() -> Iterator[Kubernetes]:
    cluster = Kubernetes()
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture
def rig(make_rig: MakeRig) -> Iterator[Rig]:
    rig = make_rig("t4x2", cdi=True)
    with MpsDaemon(rig.node, rig.pipe, rig.directory / "log"):
        yield rig


@contextmanager
def agent(rig: Rig, kubernetes: Kubernetes, policy: str, *more: str) -> Iterator[BackgroundProcess]:
    flags = (
        f"--mps-pipe={rig.pipe}",
        f"--cdi-directory={rig.directory / 'cdi'}",
        "--bind=cdi",
        f"--thread-annotations={policy}",
        "--node-name=n1",
        f"--kubeconfig={kubernetes.kubeconfig(rig.directory / 'kubeconfig')}",
    )
    with rig.agent(*flags, *more) as process:
        rig.wait_for_limits()
        yield process


def annotate(kubernetes: Kubernetes, pod: str, **annotations: str) -> None:
    """`threads="30%"`, or `threads_side="30%"` for a container."""
    named = {f"gpuslice.io/{k.replace('_', '.')}": v for k, v in annotations.items()}
    metadata = {"namespace": "default", "annotations": named, "uid": Pod(pod, []).uid}
    containers = [{"name": "main"}, {"name": "side"}]
    kubernetes.put("pods", pod, metadata=metadata, spec={"containers": containers})


def two_containers(name: str = "p") -> Pod:
    """6 of 15 units are 40% of the threads."""
    return Pod(name, [Container("main", {RESOURCE: 6}), Container("side", {RESOURCE: 6})])


def threads(rig: Rig, pod: Pod, container: str = "main") -> str:
    return rig.kubelet.start_container(pod, container).envs[THREADS]


def _starts(rig: Rig, pod: Pod) -> str | None:
    """None: the container waits, and the kubelet tries again."""
    try:
        return threads(rig, pod)
    except StartError:
        return None


@pytest.mark.parametrize(
    ("policy", "main", "side"), [("off", "40", "40"), ("lower", "40", "10"), ("any", "70", "10")]
)
def test_the_policy_decides_what_an_annotation_changes(
    rig: Rig, kubernetes: Kubernetes, policy: str, main: str, side: str
) -> None:
    annotate(kubernetes, "p", threads="70%", threads_side="10%")
    with agent(rig, kubernetes, policy):
        pod = two_containers()
        rig.kubelet.admit(pod)
        assert threads(rig, pod) == main
        assert threads(rig, pod, "side") == side


@pytest.mark.parametrize(
    ("policy", "main", "side"), [("lower", (40, 16), (20, 8)), ("any", (50, 20), (20, 8))]
)
def test_annotations_by_sms_hold_as_the_driver_rounds(
    rig: Rig, kubernetes: Kubernetes, policy: str, main: tuple[int, int], side: tuple[int, int]
) -> None:
    annotate(kubernetes, "p", threads="20 SMs", threads_side="9 SMs")
    with agent(rig, kubernetes, policy):
        pod = two_containers()
        rig.kubelet.admit(pod)
        for container, (percent, sms) in (("main", main), ("side", side)):
            answer = rig.kubelet.start_container(pod, container)
            assert answer.envs[THREADS] == str(percent)
            assert rig.simcuda(answer, "info")["devices"][0]["sms"] == sms


def test_more_sms_than_the_gpu_has_are_refused_until_the_annotation_is_corrected(
    rig: Rig, kubernetes: Kubernetes
) -> None:
    annotate(kubernetes, "p", threads="41 SMs")
    with agent(rig, kubernetes, "any"):
        pod = two_containers()
        rig.kubelet.admit(pod)
        with pytest.raises(StartError, match=f"{Code.ANNOTATION_INVALID}: .*at most 40 SMs"):
            threads(rig, pod)
        annotate(kubernetes, "p", threads="40 SMs")
        eventually(lambda: _starts(rig, pod) == "100", "the container starts")


def test_a_changed_annotation_applies_at_the_next_start(rig: Rig, kubernetes: Kubernetes) -> None:
    annotate(kubernetes, "p", threads="30%")
    with agent(rig, kubernetes, "lower"):
        pod = two_containers()
        rig.kubelet.admit(pod)
        assert threads(rig, pod) == "30"
        annotate(kubernetes, "p", threads="20%")
        eventually(lambda: threads(rig, pod) == "20", "the change applies")


def test_without_an_api_server_containers_of_known_pods_start_and_an_unknown_pod_waits(
    rig: Rig, kubernetes: Kubernetes
) -> None:
    annotate(kubernetes, "p", threads="30%", threads_side="10%")
    with agent(rig, kubernetes, "lower"):
        pod, unknown = two_containers(), Pod("new", [Container("main", {RESOURCE: 1})])
        for one in (pod, unknown):
            rig.kubelet.admit(one)
        assert threads(rig, pod) == "30"
        kubernetes.stop()
        assert threads(rig, pod) == "30"
        assert threads(rig, pod, "side") == "10"
        with pytest.raises(StartError, match=f"{Code.ANNOTATIONS_UNKNOWN}: .*default/new"):
            threads(rig, unknown)
        kubernetes.start()
        annotate(kubernetes, "new", threads="2%")
        assert threads(rig, unknown) == "2"


def test_an_agent_that_restarts_without_an_api_server_keeps_the_limits_of_a_container(
    rig: Rig, kubernetes: Kubernetes
) -> None:
    annotate(kubernetes, "p", threads="30%")
    pod = two_containers()
    with agent(rig, kubernetes, "lower"):
        rig.kubelet.admit(pod)
        assert threads(rig, pod) == "30"
    kubernetes.stop()
    with agent(rig, kubernetes, "lower"):
        assert threads(rig, pod) == "30"
        with pytest.raises(StartError, match=f"{Code.ANNOTATIONS_UNKNOWN}: "):
            threads(rig, pod, "side")
    kubernetes.start()


@pytest.mark.parametrize("is_watched", [True, False])
def test_a_hundred_pods_at_once_have_the_threads_of_their_own_annotations(
    rig: Rig, kubernetes: Kubernetes, *, is_watched: bool
) -> None:
    """Requests are limited to 5 per second, so without the watch there are fewer pods."""
    kubernetes.refuse_pattern = "" if is_watched else "/api/v1/pods"
    pods = {
        f"pod-{number}": Pod(f"pod-{number}", [Container("main", {RESOURCE: 1})])
        for number in range(100 if is_watched else 12)
    }
    with agent(rig, kubernetes, "any", "--memory-unit=256MiB", ALL):
        for number, name in enumerate(pods):
            annotate(kubernetes, name, threads=f"{1 + number}%")
            rig.kubelet.admit(pods[name])
        with ThreadPoolExecutor(len(pods)) as executor:
            found = list(executor.map(lambda name: threads(rig, pods[name]), pods))
    assert found == [str(1 + number) for number in range(len(pods))]
    single = kubernetes.count("GET /api/v1/namespaces/default/pods/")
    # The watch may be later than a container that starts right after its pod was created.
    assert single <= 10 if is_watched else single >= len(pods)


def test_a_container_of_a_pod_with_an_invalid_annotation_waits(
    rig: Rig, kubernetes: Kubernetes
) -> None:
    annotate(kubernetes, "p", threads="much")
    with agent(rig, kubernetes, "lower"):
        pod = two_containers()
        rig.kubelet.admit(pod)
        with pytest.raises(StartError, match=f"{Code.ANNOTATION_INVALID}: .*use a percentage"):
            threads(rig, pod)
        annotate(kubernetes, "p", threads="20%")
        eventually(lambda: _starts(rig, pod) == "20", "the container starts")


def test_equal_pods_have_the_threads_of_their_own_annotations(
    rig: Rig, kubernetes: Kubernetes
) -> None:
    with agent(rig, kubernetes, "any"):
        pods = {
            percent: Pod(f"pod-{percent}", [Container("main", {RESOURCE: 1})])
            for percent in range(1, 13)
        }
        for percent, pod in pods.items():
            annotate(kubernetes, pod.name, threads=f"{percent}%")
            rig.kubelet.admit(pod)
        for percent, pod in pods.items():
            assert threads(rig, pod) == str(percent)
