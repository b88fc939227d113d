"""NodeFeature objects, and patches of the Node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.labels.node_feature import (
    Owner,
    is_ours,
    label_changes,
    node_feature,
    node_feature_owners,
)

from .nodes import A100, LARGE, SMALL, T4, cut, labels, several

FOREIGN = [
    "nvidia.com/gpu.present",
    "nvidia.com/gpu.deploy.driver",
    "nvidia.com/gpu-driver-upgrade-state",
    "nvidia.com/mig.config",
    "nvidia.com/mig.config.state",
    "nvidia.com/device-plugin.config",
    "nvidia.com/mig-manager.version",
    "kubernetes.io/hostname",
    "gpuslice.io/pool",
    "gpuslice.io/memory",
]
POD = Owner("v1", "Pod", "gpuslice-x", "uid-pod")
DAEMON_SET = Owner("apps/v1", "DaemonSet", "gpuslice", "uid-set")
REPLICA_SET = Owner("apps/v1", "ReplicaSet", "other", "uid-other")


def full(short: dict[str, str]) -> dict[str, str]:
    return {key if "/" in key else f"nvidia.com/{key}": value for key, value in short.items()}


@pytest.mark.parametrize("key", FOREIGN)
def test_labels_of_other_programs_are_not_changed(key: str) -> None:
    assert not is_ours(key)
    assert label_changes({key: "x"}, {}) == {}


def test_labels_that_no_longer_hold_are_removed() -> None:
    one, two = several(A100, 2)
    before = full(labels([cut(one, LARGE, SMALL), two], timestamp=3))
    after = full(labels([one, two]))
    changes = label_changes({**before, "nvidia.com/gpu.present": "true"}, after)
    assert changes["nvidia.com/gfd.timestamp"] is None
    assert "nvidia.com/gpu.present" not in changes
    patched = {k: v for k, v in {**before, **changes}.items() if v is not None}
    assert patched == after


def test_without_a_change_nothing_is_patched() -> None:
    wanted = full(labels([T4]))
    assert label_changes({**wanted, "a/b": "c"}, wanted) == {}


@given(st.dictionaries(st.sampled_from([*FOREIGN, *full(labels([T4]))]), st.text(max_size=3)))
def test_a_patch_makes_our_labels_right_and_touches_no_other(current: dict[str, str]) -> None:
    wanted = full(labels([T4]))
    patched: dict[str, str | None] = {**current, **label_changes(current, wanted)}
    left = {key: value for key, value in patched.items() if value is not None}
    assert {k: v for k, v in left.items() if is_ours(k)} == wanted
    assert {k: v for k, v in left.items() if not is_ours(k)} == {
        k: v for k, v in current.items() if not is_ours(k)
    }


def test_a_node_feature_names_its_node_and_its_owners() -> None:
    owners = node_feature_owners(POD, (REPLICA_SET, DAEMON_SET))
    body = node_feature("worker-1", "gpu", {"b/y": "2", "a/x": "1"}, owners)
    assert body == {
        "apiVersion": "nfd.k8s-sigs.io/v1alpha1",
        "kind": "NodeFeature",
        "metadata": {
            "name": "nvidia-features-for-worker-1",
            "namespace": "gpu",
            "labels": {"nfd.node.kubernetes.io/node-name": "worker-1"},
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "DaemonSet",
                    "name": "gpuslice",
                    "uid": "uid-set",
                    "controller": True,
                },
                {"apiVersion": "v1", "kind": "Pod", "name": "gpuslice-x", "uid": "uid-pod"},
            ],
        },
        "spec": {
            "features": {"flags": {}, "attributes": {}, "instances": {}},
            "labels": {"a/x": "1", "b/y": "2"},
        },
    }


def test_without_a_daemon_set_the_object_has_no_owner() -> None:
    assert node_feature_owners(POD, (REPLICA_SET,)) == ()
    body = node_feature("worker-1", "gpu", {})
    assert body["metadata"] == {
        "name": "nvidia-features-for-worker-1",
        "namespace": "gpu",
        "labels": {"nfd.node.kubernetes.io/node-name": "worker-1"},
    }
