import subprocess
import sys
from pathlib import Path

import pytest

from gpuslice.cluster.client import connect
from gpuslice.cluster.errors import ClusterError


def test_an_agent_without_an_api_server_does_not_load_the_client() -> None:
    program = (
        "import sys, gpuslice.cluster.client, gpuslice.cluster.node, gpuslice.cluster.events, "
        "gpuslice.cluster.labels\n"
        "print([name for name in ('lightkube', 'httpx2') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_outside_of_a_pod_the_remedy_is_a_kubeconfig(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ClusterError, match="set kubeconfig"):
        connect()


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", "clusters: []", "current-context: none\nclusters: []\ncontexts: []"],
)
def test_the_error_names_a_kubeconfig_that_cannot_be_used(content: str, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(content)
    with pytest.raises(ClusterError, match=f"kubeconfig '{path}' cannot be used"):
        connect(path)


def test_a_missing_kubeconfig_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="nowhere"):
        connect(tmp_path / "nowhere")


def test_an_invalid_certificate_is_reported_before_anything_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(
        "current-context: x\n"
        "contexts: [{name: x, context: {cluster: c}}]\n"
        "clusters: [{name: c, cluster: {server: 'https://h', certificate-authority: absent.crt}}]\n"
    )
    with pytest.raises(ClusterError, match="cannot be used"):
        connect(path)
