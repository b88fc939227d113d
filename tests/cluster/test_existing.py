"""The scenarios against a cluster that exists already: ours, known by its kubeconfig only."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .harness import TEST_IMAGE, Cluster
from .harness.existing import IMAGE_VARIABLE, KUBECONFIG_VARIABLE
from .harness.images import write_busybox_image
from .pods import slice_pod

HERE = Path(__file__).parent
IMAGE_WITHOUT_SIMCUDA = "test.gpuslice.dev/plain:1"


@pytest.mark.parametrize("image", [TEST_IMAGE, IMAGE_WITHOUT_SIMCUDA])
def test_scenarios_that_need_only_the_api_run_with_a_kubeconfig(
    cluster: Cluster, tmp_path: Path, image: str
) -> None:
    archive = tmp_path / "image.tar"
    write_busybox_image(archive, IMAGE_WITHOUT_SIMCUDA, cluster.binaries.busybox)
    for node in cluster.nodes:
        node.import_images([archive])
    cluster.create(slice_pod("bystander", 1, node=None))
    before = cluster.wait_for_pod("bystander", ready=True)
    said = run_scenarios(cluster, image)
    [passed] = re.findall(r"(\d+) passed", said)
    assert int(passed) >= 15
    assert not re.search(r"\d+ (failed|error)", said)
    assert "needs more than the Kubernetes API" in said
    after = cluster.pod("bystander")
    assert after["status"]["containerStatuses"] == before["status"]["containerStatuses"]
    assert len(cluster.pods()) == 1
    names = [item["metadata"]["name"] for item in cluster.kube.items("/api/v1/namespaces")]
    assert not [name for name in names if name.startswith("gpuslice-e2e-")]


def run_scenarios(cluster: Cluster, image: str) -> str:
    """All of this directory; those that need more skip themselves."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE)],
        cwd=HERE.parents[1],
        env=dict(os.environ)
        | {
            KUBECONFIG_VARIABLE: str(cluster.kubeconfig),
            IMAGE_VARIABLE: image,
            "PATH": f"{cluster.binaries.kubernetes}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
