"""deploy/manifests: every program has the rights that it uses, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuslice.cli.daemon_program import read_flags
from gpuslice.cli.gpushare import DEFAULTS as GPUSHARE_DEFAULTS
from gpuslice.cli.gpushare import PROGRAM, agent_values
from gpuslice.config.agent_options import OPTIONS
from gpuslice.config.load import load_settings
from gpuslice.config.memory_limit_settings import CGROUP_ROOT
from gpuslice.config.settings import (
    CDI_DIRECTORY,
    NESTED_DIRECTORY,
    NESTED_ENV,
    NESTED_MOUNT,
    MpsMode,
)
from gpuslice.config.watchdog_settings import CONTAINER_LOGS

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "deploy" / "manifests"
SECURITY = (ROOT / "docs" / "security.md").read_text()

Object = dict[str, Any]

KUBELET = {"/var/lib/kubelet/device-plugins", "/var/lib/kubelet/pod-resources"}
# Directories of the host that each program mounts in addition to those of the kubelet.
HOST_PATHS = {
    "gpuslice-agent": {"/run/nvidia/mps", CDI_DIRECTORY},
    "gpuslice-mps": {"/run/nvidia/mps"},
    "gpushare-device-plugin-ds": {"/root/nvidia-mps"},
    "nvidia-device-plugin-daemonset": {"/run/nvidia/mps"},
    "nvidia-device-plugin-mps-control-daemon": {"/run/nvidia/mps"},
    "gpuslice-nested-host": {NESTED_DIRECTORY},
    "gpuslice-nested-guest": {str(Path(NESTED_MOUNT).parent)},
}
# Requests to the API server: (namespace, group, resource) -> verbs.
PERMISSIONS: dict[str, dict[tuple[str, str, str], set[str]]] = {
    "nvidia-device-plugin-daemonset": {
        ("", "", "nodes"): {"list", "watch"},
        ("default", "", "events"): {"get", "create", "patch"},
    },
    "nvidia-device-plugin-mps-control-daemon": {
        ("", "", "nodes"): {"list", "watch"},
        ("default", "", "events"): {"get", "create", "patch"},
    },
}
PRIVILEGED = {"gpuslice-mps", "nvidia-device-plugin-mps-control-daemon"}


def objects(*names: str) -> list[Object]:
    paths = [MANIFESTS / name for name in names] or sorted(MANIFESTS.glob("*.yaml"))
    return [thing for path in paths for thing in yaml.safe_load_all(path.read_text())]


DAEMON_SETS = {one["metadata"]["name"]: one for one in objects() if one["kind"] == "DaemonSet"}
every_daemon_set = pytest.mark.parametrize("name", DAEMON_SETS)


def pod(name: str) -> Object:
    spec: Object = DAEMON_SETS[name]["spec"]["template"]["spec"]
    return spec


def containers(name: str) -> list[Object]:
    return [*pod(name).get("initContainers", []), *pod(name)["containers"]]


def permissions(account: str, things: list[Object]) -> dict[tuple[str, str, str], set[str]]:
    roles = {
        (thing["kind"], thing["metadata"].get("namespace", ""), thing["metadata"]["name"]): thing
        for thing in things
        if thing["kind"] in ("Role", "ClusterRole")
    }
    found: dict[tuple[str, str, str], set[str]] = {}
    for thing in things:
        if thing["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
            continue
        if account not in [subject["name"] for subject in thing["subjects"]]:
            continue
        namespace = thing["metadata"].get("namespace", "")
        role = roles[thing["roleRef"]["kind"], namespace, thing["roleRef"]["name"]]
        for rule in role["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    key = (namespace, group, resource)
                    found.setdefault(key, set()).update(rule["verbs"])
    return found


def test_every_daemonset_is_listed_here() -> None:
    assert DAEMON_SETS.keys() == HOST_PATHS.keys()


@every_daemon_set
def test_a_program_has_a_service_account_of_its_own(name: str) -> None:
    account = pod(name)["serviceAccountName"]
    assert [other for other in DAEMON_SETS if pod(other)["serviceAccountName"] == account] == [name]
    assert account in [o["metadata"]["name"] for o in objects() if o["kind"] == "ServiceAccount"]


@every_daemon_set
def test_a_program_has_the_permissions_that_it_uses_and_no_others(name: str) -> None:
    things = [thing for thing in objects() if "labels" not in thing["metadata"]["name"]]
    assert permissions(pod(name)["serviceAccountName"], things) == PERMISSIONS.get(name, {})


@every_daemon_set
def test_a_pod_without_permissions_gets_no_token(name: str) -> None:
    [account] = [
        thing
        for thing in objects()
        if thing["kind"] == "ServiceAccount"
        and thing["metadata"]["name"] == pod(name)["serviceAccountName"]
    ]
    if name not in PERMISSIONS:
        assert pod(name)["automountServiceAccountToken"] is False
        assert account["automountServiceAccountToken"] is False


def test_labels_need_permissions_that_only_their_own_manifest_grants() -> None:
    granted = permissions("nvidia-device-plugin", objects("nvidia-labels.yaml"))
    assert granted[("", "", "nodes")] == {"get", "patch"}
    without = permissions("nvidia-device-plugin", objects("nvidia.yaml"))
    assert not any("patch" in verbs for (_, _, kind), verbs in without.items() if kind == "nodes")
    [labels] = [
        entry["value"]
        for entry in pod("nvidia-device-plugin-daemonset")["containers"][0]["env"]
        if entry["name"] == "GPUSLICE_LABELS"
    ]
    assert labels == "off"


@every_daemon_set
def test_a_container_has_no_more_privileges_than_it_needs(name: str) -> None:
    assert pod(name)["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod(name).get("hostPID", False) is (name in PRIVILEGED)
    assert "hostNetwork" not in pod(name)
    assert "hostIPC" not in pod(name)
    for container in containers(name):
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] is True
        if name in PRIVILEGED:
            continue
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert "privileged" not in context


@every_daemon_set
def test_a_container_has_a_memory_limit(name: str) -> None:
    for container in containers(name):
        assert container["resources"]["limits"]["memory"]


@every_daemon_set
def test_a_program_that_hangs_is_restarted(name: str) -> None:
    [container] = pod(name)["containers"]
    [port] = container["ports"]
    address = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert address["GPUSLICE_METRICS_ADDRESS"] == f":{port['containerPort']}"
    for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {"path": path, "port": port["name"]}
        assert container[probe]["timeoutSeconds"] >= 5


@every_daemon_set
def test_a_program_mounts_no_more_of_the_host_than_it_needs(name: str) -> None:
    paths = {v["hostPath"]["path"] for v in pod(name)["volumes"] if "hostPath" in v}
    assert paths - KUBELET == HOST_PATHS[name]
    assert "/" not in paths
    for mount in (mount for container in containers(name) for mount in container["volumeMounts"]):
        if mount["name"] in ("pod-resources", "available-configs", "nested-list"):
            assert mount["readOnly"] is True


def test_only_prometheus_reaches_the_metrics_of_every_program() -> None:
    [policy] = objects("network-policy.yaml")
    selected = policy["spec"]["podSelector"]["matchLabels"]
    for daemon_set in DAEMON_SETS.values():
        template = daemon_set["spec"]["template"]
        assert selected.items() <= template["metadata"]["labels"].items()
        assert daemon_set["metadata"]["namespace"] == policy["metadata"]["namespace"]
    [rule] = policy["spec"]["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": 9400}]
    [source] = rule["from"]
    assert source["namespaceSelector"]["matchLabels"]


def test_the_patch_for_cdi_mounts_what_the_agent_is_told() -> None:
    patch = yaml.safe_load((ROOT / "deploy" / "patches" / "nvidia-cdi.yaml").read_text())
    spec = patch["spec"]["template"]["spec"]
    [container] = spec["containers"]
    assert container["name"] == pod("nvidia-device-plugin-daemonset")["containers"][0]["name"]
    env = {entry["name"]: entry["value"] for entry in container["env"]}
    volumes = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert volumes[mounts["/driver-root"]["name"]] == env["NVIDIA_DRIVER_ROOT"]
    assert mounts["/driver-root"]["readOnly"] is True
    assert volumes[mounts[CDI_DIRECTORY]["name"]] == CDI_DIRECTORY


def test_the_patch_for_the_watchdog_gives_the_rights_that_are_explained() -> None:
    patch = yaml.safe_load((ROOT / "deploy" / "patches" / "agent-watchdog.yaml").read_text())
    spec = patch["spec"]["template"]["spec"]
    assert spec["hostPID"] is True
    [container] = spec["containers"]
    assert container["name"] == pod("gpuslice-agent")["containers"][0]["name"]
    assert container["securityContext"] == {"capabilities": {"add": ["KILL"]}}
    [mount] = container["volumeMounts"]
    assert mount["readOnly"] is True
    [volume] = spec["volumes"]
    assert mount["mountPath"] == volume["hostPath"]["path"] == CONTAINER_LOGS
    section = SECURITY.partition("\n### Rights of the watchdog\n")[2].partition("\n### ")[0]
    for right in ("hostPID: true", CONTAINER_LOGS, "KILL", "pods/eviction", "events"):
        assert f"`{right}`" in section
    assert variables(container) <= {name for option in OPTIONS for name in option.variables}


def test_the_patch_for_memory_limits_gives_the_right_that_is_explained() -> None:
    patch = yaml.safe_load((ROOT / "deploy" / "patches" / "agent-memory-limits.yaml").read_text())
    spec = patch["spec"]["template"]["spec"]
    [container] = spec["containers"]
    assert container["name"] == pod("gpuslice-agent")["containers"][0]["name"]
    assert "securityContext" not in container
    [mount] = container["volumeMounts"]
    assert mount["readOnly"] is True
    [volume] = spec["volumes"]
    assert mount["mountPath"] == volume["hostPath"]["path"] == CGROUP_ROOT
    heading = "\n### Rights for memory limits of the driver\n"
    assert f"`{CGROUP_ROOT}` of the host, read-only" in SECURITY.partition(heading)[2]
    assert variables(container) <= {name for option in OPTIONS for name in option.variables}


def patched(name: str, patch_name: str) -> tuple[Object, Object]:
    """Pod and container of a DaemonSet after `kubectl patch`, which merges lists by name."""
    patch = yaml.safe_load((ROOT / "deploy" / "patches" / patch_name).read_text())
    change = patch["spec"]["template"]["spec"]
    before, [new] = pod(name), change["containers"]
    [old] = before["containers"]
    assert new["name"] == old["name"]

    def merged(key: str, ours: Object, theirs: Object) -> list[Object]:
        by_name = {one["name"]: one for one in (*ours[key], *theirs.get(key, ()))}
        return list(by_name.values())

    container = {**old, **new}
    container |= {key: merged(key, old, new) for key in ("env", "volumeMounts")}
    return {**before, "volumes": merged("volumes", before, change)}, container


def values(container: Object) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in container["env"]}


def mounted(spec: Object, container: Object) -> dict[str, str]:
    """Place in the container -> directory of the host."""
    volumes = {v["name"]: v["hostPath"]["path"] for v in spec["volumes"] if "hostPath" in v}
    return {m["mountPath"]: volumes[m["name"]] for m in container["volumeMounts"]}


def test_both_pods_of_managed_mps_have_the_same_settings() -> None:
    [agent], [mps] = pod("gpuslice-agent")["containers"], pod("gpuslice-mps")["containers"]
    assert (agent["command"], mps["command"]) == (["gpuslice", "agent"], ["gpuslice", "mps"])
    assert values(agent) == values(mps)
    assert values(agent)["GPUSLICE_MPS_MODE"] == MpsMode.MANAGED.value
    assert agent["image"] == mps["image"]
    for spec, container in ((pod("gpuslice-agent"), agent), (pod("gpuslice-mps"), mps)):
        assert mounted(spec, container)["/mps"] == values(container)["MPS_ROOT"]


def test_the_patch_for_external_mps_mounts_its_pipe_directory() -> None:
    spec, container = patched("gpuslice-agent", "agent-external-mps.yaml")
    env = values(container)
    assert (env["GPUSLICE_MPS_MODE"], env["GPUSLICE_MPS_SHM"]) == ("external", "host")
    pipe = env["GPUSLICE_MPS_PIPE"]
    assert mounted(spec, container)[pipe] == pipe


def test_the_patch_for_gpushare_uses_the_daemons_of_managed_mps() -> None:
    spec, container = patched("gpushare-device-plugin-ds", "gpushare-managed-mps.yaml")
    flags = read_flags(PROGRAM, container["command"][1:])
    settings = load_settings(agent_values(flags, values(container)), GPUSHARE_DEFAULTS).settings
    assert settings.memory_mps.mode is MpsMode.MANAGED
    root = settings.containers.mps_root
    assert mounted(spec, container)["/mps"] == root
    assert root == values(pod("gpuslice-mps")["containers"][0])["MPS_ROOT"]


def test_the_watchdog_uses_the_api_server_only_with_a_patch_of_its_own() -> None:
    patches = ROOT / "deploy" / "patches"
    patch = yaml.safe_load((patches / "agent-watchdog-events.yaml").read_text())
    spec = patch["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is True
    assert variables(spec["containers"][0]) == {"NODE_NAME"}
    text = (patches / "agent-watchdog-permissions.yaml").read_text()
    account = pod("gpuslice-agent")["serviceAccountName"]
    assert permissions(account, list(yaml.safe_load_all(text))) == {
        ("", "", "events"): {"get", "create", "patch"},
        ("", "", "pods/eviction"): {"create"},
    }


def test_annotations_need_the_right_to_read_pods_and_a_patch_of_their_own() -> None:
    patches = ROOT / "deploy" / "patches"
    patch = yaml.safe_load((patches / "agent-thread-annotations.yaml").read_text())
    spec = patch["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is True
    assert variables(spec["containers"][0]) == {"NODE_NAME", "GPUSLICE_THREAD_ANNOTATIONS"}
    text = (patches / "agent-thread-annotations-permissions.yaml").read_text()
    account = pod("gpuslice-agent")["serviceAccountName"]
    assert permissions(account, list(yaml.safe_load_all(text))) == {
        ("", "", "pods"): {"get", "list", "watch"}
    }
    assert "`deploy/patches/agent-thread-annotations.yaml`" in SECURITY


def variables(container: Object) -> set[str]:
    return {entry["name"] for entry in container["env"]}


@every_daemon_set
def test_a_program_has_only_variables_that_it_knows(name: str) -> None:
    known = {variable for option in OPTIONS for variable in option.variables}
    known |= {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}  # of the container runtime
    [container] = pod(name)["containers"]
    assert {entry["name"] for entry in container["env"]} <= known


def test_a_nested_host_mounts_lists_where_its_guest_reads_them() -> None:
    [host] = pod("gpuslice-nested-host")["containers"]
    variables = {entry["name"]: entry.get("value") for entry in host["env"]}
    assert (variables["NESTED"], variables["NESTED_FILE"]) == ("host", "mount")
    # Containers get files of this directory from the host.
    [nested] = [mount for mount in host["volumeMounts"] if mount["name"] == "nested"]
    assert nested["mountPath"] == NESTED_DIRECTORY
    [guest] = pod("gpuslice-nested-guest")["containers"]
    variables = {entry["name"]: entry.get("value") for entry in guest["env"]}
    assert (variables["NESTED"], variables["FAIL_ON_INIT_ERROR"]) == ("guest", "false")
    assert "NESTED_ENV" not in variables
    [listed] = [mount for mount in guest["volumeMounts"] if mount["name"] == "nested-list"]
    assert listed["mountPath"] == str(Path(NESTED_MOUNT).parent)


def test_the_guest_of_nodes_that_write_their_list_themselves_is_a_comment_away() -> None:
    text = (MANIFESTS / "nested-guest.yaml").read_text()
    [mount, volume] = [yaml.safe_load("\n".join(block)) for block in comment_blocks(text)]
    assert mount == [{"name": "nested-list", "mountPath": NESTED_ENV, "readOnly": True}]
    assert volume == [{"name": "nested-list", "hostPath": {"path": NESTED_ENV, "type": "File"}}]


def comment_blocks(text: str) -> Iterator[list[str]]:
    """Commented lines that are YAML: each begins with a list entry."""
    block: list[str] = []
    for line in (line.strip() for line in text.splitlines()):
        if line.startswith("# - "):
            block = [line.removeprefix("# ")]
        elif block and line.startswith("#   "):
            block.append(line.removeprefix("# "))
        elif block:
            yield block
            block = []
    if block:
        yield block


@every_daemon_set
def test_every_right_of_a_program_is_explained(name: str) -> None:
    section = SECURITY.partition("\n## Rights of each program\n")[2].partition("\n## ")[0]
    [row] = [line for line in section.splitlines() if line.startswith("|") and f"`{name}`" in line]
    for path in HOST_PATHS[name]:
        assert f"`{path}`" in row
    for _, _, resource in PERMISSIONS.get(name, {}):
        assert f"`{resource}`" in row
    assert ("privileged" in row) is (name in PRIVILEGED)
