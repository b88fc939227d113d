"""Labels -> a NodeFeature object, or a patch of the Node."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuslice.labels.label_syntax import OWN_DOMAIN

NODE_FEATURE_API = "nfd.k8s-sigs.io/v1alpha1"
NODE_FEATURE_KIND = "NodeFeature"
NODE_NAME_LABEL = "nfd.node.kubernetes.io/node-name"

# Other programs write labels of nvidia.com as well, for example gpu.present, gpu.deploy.*,
# mig.config and device-plugin.config. These must not be removed.
_GPU = (
    r"product|count|replicas|sharing-strategy|memory|multiprocessors"
    r"|slices\.(gi|ci)|engines\.(copy|decoder|encoder|jpeg|ofa)"
)
_OWNED = re.compile(
    r"nvidia\.com/("
    r"gfd\.timestamp"
    r"|cuda\.(driver|runtime)(-version)?\.(major|minor|rev|revision|full)"
    rf"|gpu\.({_GPU}|machine|family|compute\.(major|minor)|mode|clique)"
    r"|mig\.(capable|strategy)"
    r"|mps\.capable"
    r"|vgpu\.(present|host-driver-version|host-driver-branch)"
    rf"|mig-[0-9][0-9a-z.\-]*\.({_GPU})"
    rf")|{re.escape(OWN_DOMAIN)}/(gpu|resource|memory)\..*"
)


@dataclass(frozen=True, slots=True)
class Owner:
    """An object that owns a pod or a NodeFeature object."""

    api_version: str
    kind: str
    name: str
    uid: str


def is_ours(key: str) -> bool:
    """Whether feature discovery writes this label, and so may remove it."""
    return _OWNED.fullmatch(key) is not None


def label_changes(current: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str | None]:
    """What to patch: a value sets the label, None removes it."""
    changes: dict[str, str | None] = {
        key: None for key in current if key not in wanted and is_ours(key)
    }
    changes |= {key: value for key, value in wanted.items() if current.get(key) != value}
    return dict(sorted(changes.items()))


def node_feature_name(node: str) -> str:
    return f"nvidia-features-for-{node}"


def node_feature(
    node: str, namespace: str, labels: Mapping[str, str], owners: Sequence[Owner] = ()
) -> dict[str, object]:
    """The object from which node-feature-discovery labels the node."""
    metadata: dict[str, object] = {
        "name": node_feature_name(node),
        "namespace": namespace,
        "labels": {NODE_NAME_LABEL: node},
    }
    if owners:
        metadata["ownerReferences"] = [_reference(owner) for owner in owners]
    return {
        "apiVersion": NODE_FEATURE_API,
        "kind": NODE_FEATURE_KIND,
        "metadata": metadata,
        "spec": {
            "features": {"flags": {}, "attributes": {}, "instances": {}},
            "labels": dict(sorted(labels.items())),
        },
    }


def node_feature_owners(pod: Owner, owners: Sequence[Owner]) -> tuple[Owner, ...]:
    """The DaemonSet and the pod: the cluster removes the object when both are deleted.

    Without a DaemonSet, the object has no owner, because it would be removed with every pod.
    """
    daemon_set = next((owner for owner in owners if owner.kind == "DaemonSet"), None)
    return () if daemon_set is None else (daemon_set, pod)


def _reference(owner: Owner) -> dict[str, object]:
    reference: dict[str, object] = {
        "apiVersion": owner.api_version,
        "kind": owner.kind,
        "name": owner.name,
        "uid": owner.uid,
    }
    # An object has at most one controller.
    return reference | ({"controller": True} if owner.kind == "DaemonSet" else {})
