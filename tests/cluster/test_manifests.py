"""deploy/manifests: accepted by the API server, and the samples run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from .harness import RESOURCE, TEST_IMAGE, Cluster, eventually

MANIFESTS = Path(__file__).parents[2] / "deploy" / "manifests"
SAMPLES = sorted((MANIFESTS / "samples").glob("*.yaml"))


def everything() -> list[Path]:
    return sorted(MANIFESTS.rglob("*.yaml"))


@pytest.mark.parametrize("path", everything(), ids=lambda path: path.name)
def test_a_manifest_is_accepted_to_the_last_field(cluster: Cluster, path: Path) -> None:
    said = cluster.kubectl(
        "apply", "--dry-run=server", "--validate=strict", "--server-side", "--force-conflicts",
        "-f", str(path),
    )  # fmt: skip
    assert "serverside-applied (server dry run)" in said


def test_a_misspelt_field_would_be_refused(cluster: Cluster, tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    text = (MANIFESTS / "gpushare.yaml").read_text()
    broken.write_text(text.replace("runtimeClassName", "runtimeClasName"))
    with pytest.raises(RuntimeError, match="runtimeClasName"):
        cluster.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", str(broken))


def test_every_sample_runs_and_receives_its_slices(cluster: Cluster) -> None:
    try:
        for path in SAMPLES:
            cluster.apply(with_test_image(path))
        pods = eventually(lambda: running_pods(cluster, 5), "five pods of the samples run")
        for pod in pods:
            for container in pod["spec"]["containers"]:
                asked = container["resources"]["limits"][RESOURCE]
                said = cluster.logs(pod["metadata"]["name"], container["name"])
                assert f"ALIYUN_COM_GPU_MEM_CONTAINER={asked}\n" in said
                assert f"=GPU-{said.partition('NVIDIA_VISIBLE_DEVICES=GPU-')[2][:36]}" in said
                assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=GPU-" in said
    finally:
        cluster.kubectl("delete", "deployment", "--all", "--wait=true")


def with_test_image(path: Path) -> str:
    """As it stands, with an image that is there without a registry."""
    text = path.read_text()
    [image] = {line.split()[-1] for line in text.splitlines() if "image:" in line}
    return text.replace(image, TEST_IMAGE)


def running_pods(cluster: Cluster, count: int) -> list[dict[str, Any]] | None:
    pods = cluster.kube.items("/api/v1/namespaces/default/pods")
    running = [pod for pod in pods if pod["status"]["phase"] == "Running"]
    return running if len(running) == count else None


def test_the_daemonsets_give_the_agent_what_it_needs() -> None:
    for name in ("gpushare.yaml", "agent.yaml"):
        [daemon_set] = yaml.safe_load_all((MANIFESTS / name).read_text())
        pod = daemon_set["spec"]["template"]["spec"]
        [container] = pod["containers"]
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        words = " ".join(container["command"]) + str(container["env"])
        [pipe] = mounts - {"/var/lib/kubelet/device-plugins"}
        assert pipe in words  # MPS is looked after only where its directory can be seen
        assert pod["priorityClassName"] == "system-node-critical"
