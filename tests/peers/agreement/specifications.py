"""CDI specifications of the two plugins, made comparable. Only accepted differences are undone."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from .differences import (
    CDI_BY_PATH,
    CDI_GROUPS,
    CDI_HOST_PATH,
    CDI_IMEX_NUMBERS,
    CDI_ONE_HOOK,
    Difference,
)
from .pair import Pair

Spec = dict[str, Any]

VENDOR = "k8s.device-plugin.nvidia.com"


def specifications_agree(
    pair: Pair, classes: Collection[str], accepted: Collection[Difference] = ()
) -> None:
    """Both describe these classes of devices, and describe them alike."""
    theirs, ours = read(pair.theirs.cdi_directory), read(pair.ours.cdi_directory)
    assert ours.keys() == theirs.keys() == set(classes)
    for name in classes:
        expected = plain(theirs[name], pair, accepted)
        assert plain(ours[name], pair, accepted) == expected


def read(directory: Path) -> dict[str, Spec]:
    """By class of devices: the file is named for it."""
    prefix = f"{VENDOR}-"
    return {
        path.stem.removeprefix(prefix): json.loads(path.read_text())
        for path in directory.iterdir()
        if path.name.startswith(prefix)
    }


def plain(spec: Spec, pair: Pair, accepted: Collection[Difference]) -> Mapping[str, object]:
    """A specification without what may differ and without order that means nothing."""
    assert spec.keys() <= {"cdiVersion", "kind", "devices", "containerEdits"}
    edits = {device["name"]: device["containerEdits"] for device in spec["devices"]}
    assert list(edits) == sorted(edits)
    edits["all devices"] = spec.get("containerEdits", {})
    version = spec["cdiVersion"]
    if {CDI_GROUPS, CDI_HOST_PATH} & set(accepted):
        version = "as its content needs it"
    return {
        "kind": spec["kind"],
        "version": version,
        **{name: _edits(edit, pair, accepted) for name, edit in edits.items()},
    }


def _edits(edits: Spec, pair: Pair, accepted: Collection[Difference]) -> Mapping[str, object]:
    assert edits.keys() <= {"env", "deviceNodes", "hooks", "mounts", "additionalGids"}
    return {
        "env": edits.get("env", []),
        "nodes": [_node(node, accepted) for node in edits.get("deviceNodes", [])],
        "hooks": _hooks(edits.get("hooks", []), pair, accepted),
        "mounts": sorted(edits.get("mounts", []), key=str),
        "groups": [] if CDI_GROUPS in accepted else edits.get("additionalGids", []),
    }


def _node(node: Spec, accepted: Collection[Difference]) -> Spec:
    if CDI_HOST_PATH in accepted:
        node = {"hostPath": node["path"], **node}
    if CDI_IMEX_NUMBERS in accepted and "imex" in node["path"]:
        return {key: node[key] for key in ("path", "hostPath")}
    return node


def _hooks(hooks: list[Spec], pair: Pair, accepted: Collection[Difference]) -> list[object]:
    """In their order. The links of one hook have none."""
    found: list[object] = []
    links: list[str] | None = None
    for hook in hooks:
        assert hook.keys() == {"hookName", "path", "args", "env"}
        words = list(hook["args"])
        if CDI_BY_PATH in accepted:
            words = [word.replace(f"::{pair.node.root}/dev/dri", "::/dev/dri") for word in words]
        call = hook["hookName"], hook["path"], hook["env"]
        if "create-symlinks" not in words:
            found.append((*call, words))
            links = None
            continue
        first = words.index("--link")
        if links is None or CDI_ONE_HOOK not in accepted:
            links = []
            found.append((*call, words[:first], links))
        assert set(words[first::2]) == {"--link"}
        links += words[first + 1 :: 2]
        links.sort()
    return found
