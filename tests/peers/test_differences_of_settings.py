"""Accepted differences from NVIDIA's device plugin 0.19.0: settings. Both sides are shown."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from gpuslice.codes import Code

from .agreement import differences as d
from .agreement.configs import GPU, only_ours_rejects, replicas, write
from .agreement.differences import shows
from .agreement.pair import OURS, ListeningKubelet, Side, running
from .agreement.requests import answer
from .build import Peers
from .conftest import MakeNode, StartPair


@shows(d.EXTRAS_OFF)
def test_gds_mofed_and_gdrcopy_are_off_by_default_with_our_plugin(
    make_node: MakeNode, start_pair: StartPair
) -> None:
    unset = {f"{name}_ENABLED": None for name in ("GDS", "MOFED", "GDRCOPY")}
    pair = start_pair(make_node("t4x2"), env=unset)
    pair.wait_for(GPU)
    uuid = pair.node.gpu(0).uuid
    assert dict(answer(pair.ours, [uuid]).envs) == {"NVIDIA_VISIBLE_DEVICES": uuid}
    assert dict(answer(pair.theirs, [uuid]).envs) == {
        "NVIDIA_VISIBLE_DEVICES": uuid,
        "NVIDIA_GDS": "enabled",
        "NVIDIA_MOFED": "enabled",
        "NVIDIA_GDRCOPY": "enabled",
    }


@shows(d.EMPTY_VARIABLE)
@pytest.mark.parametrize("variable", ["MIG_STRATEGY", "DEVICE_LIST_STRATEGY", "KUBELET_SOCKET"])
def test_our_plugin_ignores_an_empty_variable(
    make_node: MakeNode, start_pair: StartPair, variable: str
) -> None:
    pair = start_pair(make_node("t4x2"), env={variable: ""})
    pair.ours.wait_for({GPU})
    if variable == "KUBELET_SOCKET":
        pair.theirs.process.wait_for_output("Starting to serve 'nvidia.com/gpu'")
    else:
        assert pair.theirs.process.wait() != 0
    assert pair.theirs.kubelet.registrations == 0


@shows(d.STRICT_KEYS)
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("flags: {renameByDefault: true}", "sharing.timeSlicing.renameByDefault"),
        ("flags: {migStrat: none}", "did you mean `migStrategy`?"),
        ("flags: {MigStrategy: none}", "did you mean `migStrategy`?"),
        ("version: v1\nversion: v1", "duplicate key"),
    ],
)
def test_our_plugin_rejects_keys_that_nvidias_ignores(
    make_node: MakeNode, peers: Peers, scratch: Path, text: str, words: str
) -> None:
    config = write(scratch, text)
    assert words in only_ours_rejects(peers, make_node("t4x2"), scratch, f"--config-file={config}")


@shows(d.STRICT_VALUES)
@pytest.mark.parametrize(
    ("flag", "entries", "words"),
    [
        ("--driver-root=run", [], "absolute path"),
        ("serve", [], "unexpected argument"),
        ("", [{"name": "gpu", "replicas": 2.0}], "replicas"),
        ("", [{"name": "gpu", "replicas": 2, "devices": []}], "name at least one device"),
        ("", [{"name": "gpu", "replicas": 2}, {"name": "gpu", "replicas": 3}], "list devices"),
    ],
)
def test_our_plugin_rejects_values_that_nvidias_ignores(
    make_node: MakeNode,
    peers: Peers,
    scratch: Path,
    flag: str,
    entries: list[object],
    words: str,
) -> None:
    sharing = {"timeSlicing": {"resources": entries}} if entries else {}
    config = write(scratch, {"sharing": sharing})
    flags = [f"--config-file={config}", *filter(None, [flag])]
    assert words in only_ours_rejects(peers, make_node("t4x2"), scratch, *flags)


@shows(d.HONOURED)
def test_our_plugin_applies_names_and_devices_of_the_file(
    make_node: MakeNode, start_pair: StartPair, scratch: Path
) -> None:
    config = write(
        scratch,
        {
            "resources": {"gpus": [{"pattern": "*A100*", "name": "a100"}]},
            "sharing": {"timeSlicing": replicas(4, rename="gpu.slow", devices=[0, 3])},
        },
    )
    node = make_node("mixed")  # T4, A100, T4, L40S
    pair = start_pair(node, f"--config-file={config}")
    pair.theirs.wait_for({GPU})
    pair.ours.wait_for({GPU, "nvidia.com/a100", "nvidia.com/gpu.slow"})
    assert len(pair.theirs.health(GPU)) == 4 * 4
    assert pair.theirs.kubelet.resources() == [GPU]
    assert set(pair.ours.health(GPU)) == {node.gpu(2).uuid}
    assert set(pair.ours.health("nvidia.com/a100")) == {node.gpu(1).uuid}
    assert len(pair.ours.health("nvidia.com/gpu.slow")) == 2 * 4


@shows(d.ONE_REPLICA)
def test_our_plugin_accepts_a_single_replica(
    make_node: MakeNode, start_pair: StartPair, scratch: Path
) -> None:
    config = write(scratch, {"sharing": {"timeSlicing": replicas(1)}})
    pair = start_pair(make_node("t4x2"), f"--config-file={config}")
    assert pair.theirs.process.wait() != 0
    assert "number of replicas must be >= 2" in pair.theirs.process.output()
    pair.ours.wait_for({GPU})
    assert set(pair.ours.health(GPU)) == {f"{gpu.uuid}::0" for gpu in pair.node.gpus()}


@shows(d.SOCKET_DIRECTORY)
def test_our_sockets_are_in_the_directory_of_the_kubelet_socket(
    make_node: MakeNode, peers: Peers, scratch: Path
) -> None:
    flag = "--kubelet-socket=/elsewhere/kubelet.sock"
    node = make_node("t4x2")
    with ListeningKubelet(scratch / "o") as kubelet:
        binds = {"/elsewhere": kubelet.directory}
        with running(OURS, node, scratch / "usual", [flag], {}, binds) as process:
            Side("our plugin", kubelet, process).wait_for({GPU})
            assert (kubelet.directory / "nvidia-gpu.sock").exists()
    place = scratch / "t"
    place.mkdir()  # no kubelet: it would wait for a socket that never comes
    with running(
        peers.device_plugin, node, scratch / "usual", [flag], {}, {"/elsewhere": place}
    ) as process:
        process.wait_for_output("Starting to serve 'nvidia.com/gpu' on /var/lib/kubelet/")
        assert (scratch / "usual" / "nvidia-gpu.sock").exists()
        assert not (place / "nvidia-gpu.sock").exists()


@shows(d.LAST_GOOD_SETTINGS)
def test_a_broken_file_leaves_the_last_good_settings_of_our_plugin_in_force(
    make_node: MakeNode, start_pair: StartPair, scratch: Path
) -> None:
    config = write(scratch, {"sharing": {"timeSlicing": replicas(3)}})
    pair = start_pair(make_node("t4x2"), f"--config-file={config}")
    pair.wait_for(GPU)
    config.write_text("version: v2")
    for side in (pair.theirs, pair.ours):
        side.process.send(signal.SIGHUP)
    assert pair.theirs.process.wait() != 0
    pair.ours.process.wait_for_code(Code.CONFIGURATION_INVALID)
    assert list(pair.ours.health(GPU).values()) == ["Healthy"] * 6
