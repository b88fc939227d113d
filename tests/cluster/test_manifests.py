"""deploy/manifests: accepted by the API server, and the samples run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuslice.config.agent_options import OPTIONS
from gpuslice.config.settings import CDI_DIRECTORY

from .harness import RESOURCE, Client, eventually

MANIFESTS = Path(__file__).parents[2] / "deploy" / "manifests"
SAMPLES = sorted((MANIFESTS / "samples").glob("*.yaml"))
SAMPLE_UNITS = 3 * 3 + 6 + 4 + 2
KUBELET_DIRECTORIES = {"/var/lib/kubelet/device-plugins", "/var/lib/kubelet/pod-resources"}
SHOWN = (
    "ALIYUN_COM_GPU_MEM_CONTAINER",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_VISIBLE_DEVICES",
)


def everything() -> list[Path]:
    return sorted(MANIFESTS.rglob("*.yaml"))


@pytest.mark.parametrize("path", everything(), ids=lambda path: path.name)
def test_a_manifest_is_accepted_to_the_last_field(client: Client, path: Path) -> None:
    said = client.kubectl(
        "apply", "--dry-run=server", "--validate=strict", "--server-side", "--force-conflicts",
        "-f", str(path),
    )  # fmt: skip
    assert "serverside-applied (server dry run)" in said


def test_a_misspelt_field_would_be_refused(client: Client, tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    text = (MANIFESTS / "gpushare.yaml").read_text()
    broken.write_text(text.replace("runtimeClassName", "runtimeClasName"))
    with pytest.raises(RuntimeError, match="runtimeClasName"):
        client.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", str(broken))


def test_every_sample_runs_and_receives_its_slices(client: Client) -> None:
    if sum(client.offers().values()) < SAMPLE_UNITS:
        pytest.skip(f"the samples take {SAMPLE_UNITS} {RESOURCE}, the cluster has less")
    try:
        for path in SAMPLES:
            client.apply(with_image(path, client.image))
        pods = eventually(lambda: running_pods(client, 5), "five pods of the samples run")
        for pod in pods:
            for container in pod["spec"]["containers"]:
                asked = container["resources"]["limits"][RESOURCE]
                said = environment(client, pod["metadata"]["name"], container["name"])
                assert f"ALIYUN_COM_GPU_MEM_CONTAINER={asked}\n" in said
                [gpu] = re.findall(r"^CUDA_VISIBLE_DEVICES=(GPU-.+)$", said, re.M)
                memory = f"{int(asked) * 1024}M"
                limits = re.findall(r"^CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=(.+)$", said, re.M)
                assert limits in ([f"{gpu}={memory}"], [f"0={memory}"])
    finally:
        client.kubectl("delete", "deployment", "--all", "--cascade=foreground")


def environment(client: Client, pod: str, container: str) -> str:
    """What the container has printed, once it has: it runs before it prints."""

    def said() -> str | None:
        text = client.logs(pod, container)
        return text if all(f"{name}=" in text for name in SHOWN) else None

    return eventually(
        said,
        f"container {container} of {pod} shows its variables",
        explain=lambda: client.logs(pod, container),
    )


def with_image(path: Path, wanted: str) -> str:
    """As it stands, with an image that is there without a registry."""
    text = path.read_text()
    [image] = {line.split()[-1] for line in text.splitlines() if "image:" in line}
    return text.replace(image, wanted)


def running_pods(client: Client, count: int) -> list[dict[str, Any]] | None:
    running = [pod for pod in client.pods() if pod["status"]["phase"] == "Running"]
    return running if len(running) == count else None


def test_the_daemonsets_give_the_agent_what_it_needs() -> None:
    for name in ("gpushare.yaml", "agent.yaml"):
        [daemon_set] = yaml.safe_load_all((MANIFESTS / name).read_text())
        pod = daemon_set["spec"]["template"]["spec"]
        [container] = pod["containers"]
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        words = " ".join(container["command"]) + str(container["env"])
        assert mounts > KUBELET_DIRECTORIES
        [files] = mounts - KUBELET_DIRECTORIES - {CDI_DIRECTORY}
        # MPS is probed only where its files can be seen.
        assert files in words or (files == "/mps" and "MPS_ROOT" in words)
        assert pod["priorityClassName"] == "system-node-critical"


def test_nvidias_daemonset_has_only_settings_that_the_agent_knows() -> None:
    [daemon_set] = [
        thing
        for thing in yaml.safe_load_all((MANIFESTS / "nvidia.yaml").read_text())
        if thing["kind"] == "DaemonSet"
    ]
    pod = daemon_set["spec"]["template"]["spec"]
    [container] = pod["containers"]
    known = {name for option in OPTIONS for name in option.variables}
    known |= {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}  # the runtime's
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert env.keys() <= known
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert set(mounts.values()) == volumes.keys()
    assert env["CONFIG_FILE_SRCDIR"] in mounts
    # Containers get these from the host, by the same settings that the agent has.
    assert volumes[mounts["/mps"]]["hostPath"]["path"] == env["MPS_ROOT"]
    for place in KUBELET_DIRECTORIES:
        assert volumes[mounts[place]]["hostPath"]["path"] == place
    [port] = container["ports"]
    assert env["GPUSLICE_METRICS_ADDRESS"] == f":{port['containerPort']}"
    assert pod["priorityClassName"] == "system-node-critical"
