from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from gpuslice.cluster.client import connect
from gpuslice.cluster.labels import ClusterLabels
from gpuslice.labels.errors import PublishError
from gpuslice.labels.node_feature import Owner, node_feature
from gpuslice.labels.publishers import NodeLabels

from .kubernetes import Kubernetes

T = TypeVar("T")
Talk = Callable[[Callable[[NodeLabels], Awaitable[T]]], T]

FEATURE = ("nodefeatures", "nvidia-features-for-n1")


@pytest.fixture
def talk(kubernetes: Kubernetes, tmp_path: Path) -> Talk[object]:
    def run(scenario: Callable[[NodeLabels], Awaitable[object]]) -> object:
        async def main() -> object:
            api = connect(kubernetes.kubeconfig(tmp_path / "kubeconfig"))
            try:
                return await scenario(ClusterLabels(api))
            finally:
                await api.close()

        return asyncio.run(main())

    return run


def feature(**labels: str) -> dict[str, object]:
    named = {f"nvidia.com/{key}": value for key, value in labels.items()}
    return node_feature("n1", "gpus", named, (Owner("apps/v1", "DaemonSet", "d", "7"),))


def test_a_node_feature_is_created_and_not_updated_without_a_change(
    kubernetes: Kubernetes, talk: Talk[object]
) -> None:
    assert talk(lambda api: api.apply_node_feature(feature(count="2"))) is True
    stored = kubernetes.objects[FEATURE]
    assert stored["spec"]["labels"] == {"nvidia.com/count": "2"}
    assert stored["metadata"]["namespace"] == "gpus"
    assert talk(lambda api: api.apply_node_feature(feature(count="2"))) is False
    assert kubernetes.count("PUT|POST") == 1


def test_a_label_that_no_longer_holds_leaves_the_node_feature(
    kubernetes: Kubernetes, talk: Talk[object]
) -> None:
    talk(lambda api: api.apply_node_feature(feature(count="2", memory="80")))
    assert talk(lambda api: api.apply_node_feature(feature(count="2"))) is True
    assert kubernetes.objects[FEATURE]["spec"]["labels"] == {"nvidia.com/count": "2"}


def test_empty_sections_that_the_server_leaves_out_are_no_difference(
    kubernetes: Kubernetes, talk: Talk[object]
) -> None:
    talk(lambda api: api.apply_node_feature(feature(count="2")))
    del kubernetes.objects[FEATURE]["spec"]["features"]
    assert talk(lambda api: api.apply_node_feature(feature(count="2"))) is False


def test_a_conflicting_update_is_retried(kubernetes: Kubernetes, talk: Talk[object]) -> None:
    talk(lambda api: api.apply_node_feature(feature(count="1")))
    kubernetes.conflicts = 2
    assert talk(lambda api: api.apply_node_feature(feature(count="2"))) is True
    kubernetes.conflicts = 3
    with pytest.raises(PublishError, match="modified"):
        talk(lambda api: api.apply_node_feature(feature(count="3")))


def test_without_node_feature_discovery_the_error_names_the_remedy(
    kubernetes: Kubernetes, talk: Talk[object]
) -> None:
    kubernetes.node_features_known = False
    with pytest.raises(PublishError, match="install node-feature-discovery"):
        talk(lambda api: api.apply_node_feature(feature(count="2")))


def test_a_patch_sets_and_removes_labels_and_leaves_the_rest(
    kubernetes: Kubernetes, talk: Talk[object]
) -> None:
    kubernetes.label("n1", old="1", kept="1")
    changes = {"nvidia.com/old": None, "nvidia.com/new": "1"}
    talk(lambda api: api.patch_node_labels("n1", changes))
    expected = {"nvidia.com/kept": "1", "nvidia.com/new": "1"}
    assert talk(lambda api: api.read_node_labels("n1")) == expected


def test_an_empty_patch_is_not_sent(kubernetes: Kubernetes, talk: Talk[object]) -> None:
    talk(lambda api: api.patch_node_labels("n1", {}))
    assert kubernetes.requests == []


def test_the_error_of_a_rejected_request_names_the_node(
    kubernetes: Kubernetes, talk: Talk[object]
) -> None:
    kubernetes.refuse_with = 403
    with pytest.raises(PublishError, match="labelling node 'n1': refused with 403"):
        talk(lambda api: api.patch_node_labels("n1", {"a": "b"}))


def test_the_owners_of_a_pod_are_read(kubernetes: Kubernetes, talk: Talk[object]) -> None:
    above = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "7"}
    kubernetes.put("pods", "p1", metadata={"uid": "5", "ownerReferences": [above]})
    assert talk(lambda api: api.read_pod_owners("gpus", "p1")) == (
        Owner("v1", "Pod", "p1", "5"),
        (Owner("apps/v1", "DaemonSet", "d", "7"),),
    )
