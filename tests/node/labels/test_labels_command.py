"""`gpuslice labels` and `gpu-feature-discovery` as processes on a simulated node."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuslice_sim.node import SimNode
from tests.unit.cluster.kubernetes import Kubernetes

from .conftest import Once, Start

GFD = "gpu-feature-discovery"
SHARED = """
version: v1
sharing: {{timeSlicing: {{resources: [{{name: nvidia.com/gpu, replicas: {replicas}}}]}}}}
"""


def labels(text: str) -> dict[str, str]:
    return {key: value for key, _, value in (line.partition("=") for line in text.splitlines())}


def wait_until(condition: Callable[[], bool], seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def file_says(path: Path, line: str) -> Callable[[], bool]:
    return lambda: path.exists() and line in path.read_text().splitlines()


def test_labels_are_printed_once(once: Once) -> None:
    done = once("gpuslice", "labels", "--oneshot", "--output-file", "", "--no-timestamp")
    assert done.returncode == 0, done.stderr
    found = labels(done.stdout)
    assert list(found) == sorted(found)
    assert found["nvidia.com/gpu.product"] == "Tesla-T4"
    assert found["nvidia.com/gpu.sharing-strategy"] == "memory"
    assert found["gpuslice.io/resource.aliyun.com_gpu-mem.capacity"] == "30"
    assert "nvidia.com/gfd.timestamp" not in found


def test_nvidias_command_line_tells_of_whole_gpus(once: Once, tmp_path: Path) -> None:
    path = tmp_path / "gfd"
    done = once(
        GFD, "-oneshot", "--use-node-feature-api=false", "-o", str(path),
        GFD_MACHINE_TYPE_FILE="/dev/null",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = labels(path.read_text())
    assert found["nvidia.com/gpu.replicas"] == "1"
    assert found["nvidia.com/gpu.machine"] == ""
    assert abs(int(found["nvidia.com/gfd.timestamp"]) - time.time()) < 600
    assert path.stat().st_mode & 0o777 == 0o644


def test_variables_speak_where_flags_are_silent(once: Once, tmp_path: Path) -> None:
    variables = {
        "GFD_ONESHOT": "true",
        "GFD_NO_TIMESTAMP": "1",
        "GFD_USE_NODE_FEATURE_API": "false",
        "GFD_OUTPUT_FILE": str(tmp_path / "by-variable"),
        "GFD_MIG_STRATEGY": "mixed",
        "MIG_STRATEGY": "single",
    }
    assert once(GFD, **variables).returncode == 0
    found = labels((tmp_path / "by-variable").read_text())
    assert found["nvidia.com/mig.strategy"] == "mixed"
    assert "nvidia.com/gfd.timestamp" not in found
    assert once(GFD, "--output", str(tmp_path / "by-flag"), **variables).returncode == 0
    assert (tmp_path / "by-flag").exists()


def test_the_file_speaks_where_neither_does(once: Once, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "version: v1\n"
        "flags:\n"
        "  useNodeFeatureAPI: false\n"
        f"  gfd: {{oneshot: true, noTimestamp: true, outputFile: {tmp_path / 'gfd'}}}\n"
    )
    done = once(GFD, f"--config-file={config}")
    assert done.returncode == 0, done.stderr
    assert "nvidia.com/gfd.timestamp" not in labels((tmp_path / "gfd").read_text())


def test_the_file_follows_the_node_and_goes_with_the_process(
    node: SimNode, start: Start, tmp_path: Path
) -> None:
    path = tmp_path / "gfd"
    process = start("gpuslice", "labels", "--sleep-interval=100ms", f"--output-file={path}")
    wait_until(file_says(path, "nvidia.com/gpu.count=2"))
    before = path.stat().st_mtime_ns
    time.sleep(0.3)
    assert path.stat().st_mtime_ns == before, "what is equal is not written again"
    node.faults.lost(1)
    wait_until(file_says(path, "nvidia.com/gpu.count=1"))
    node.faults.restore(1)
    wait_until(file_says(path, "nvidia.com/gpu.count=2"))
    assert process.stop() == 0
    assert not path.exists()


@pytest.mark.parametrize("flag", ["--sleep-interval=infinite", "--oneshot"])
def test_the_file_stays_where_nobody_was_to_keep_it_true(
    start: Start, tmp_path: Path, flag: str
) -> None:
    path = tmp_path / "gfd"
    process = start("gpuslice", "labels", flag, f"--output-file={path}")
    wait_until(path.exists)
    if flag != "--oneshot":
        process.wait_for_output("labels published")
        process.send(signal.SIGTERM)
    assert process.wait() == 0
    assert path.exists()


def test_a_hangup_reads_the_settings_again_and_keeps_good_ones(
    start: Start, tmp_path: Path
) -> None:
    path, config = tmp_path / "gfd", tmp_path / "config.yaml"
    config.write_text(SHARED.format(replicas=4))
    process = start(
        GFD, "--use-node-feature-api=false", f"--output-file={path}", f"--config-file={config}"
    )
    wait_until(file_says(path, "nvidia.com/gpu.replicas=4"))
    config.write_text(SHARED.format(replicas="many"))
    process.send(signal.SIGHUP)
    process.wait_for_output("keeping the last good settings")
    assert file_says(path, "nvidia.com/gpu.replicas=4")()
    config.write_text(SHARED.format(replicas=5))
    process.send(signal.SIGHUP)
    wait_until(file_says(path, "nvidia.com/gpu.replicas=5"))
    assert process.stop() == 0


def test_a_driver_that_goes_leaves_the_labels_and_comes_back(
    node: SimNode, start: Start, tmp_path: Path
) -> None:
    path = tmp_path / "gfd"
    process = start("gpuslice", "labels", "--sleep-interval=100ms", f"--output-file={path}")
    wait_until(path.exists)
    state = node.directory / "state" / "node"
    away = state.rename(state.with_suffix(".away"))
    process.wait_for_output("the labels are not up to date")
    assert file_says(path, "nvidia.com/gpu.count=2")()
    away.rename(state)
    process.wait_for_output("the labels are up to date again")
    assert process.stop() == 0


def test_without_a_driver_it_fails_or_waits_as_told(once: Once, tmp_path: Path) -> None:
    args = ("--oneshot", "--use-node-feature-api=false", f"--output-file={tmp_path / 'gfd'}")
    nowhere = {"LD_LIBRARY_PATH": ""}
    failed = once(GFD, *args, **nowhere)
    assert failed.returncode == 1
    assert "the NVIDIA driver cannot be used" in failed.stderr
    assert "Traceback" not in failed.stderr
    waited = once(GFD, *args, "--fail-on-init-error=false", **nowhere)
    assert waited.returncode == 0
    assert "nvidia.com/gpu.count" not in labels((tmp_path / "gfd").read_text())


def test_a_directory_that_is_missing_is_named(once: Once, tmp_path: Path) -> None:
    done = once("gpuslice", "labels", "--oneshot", f"--output-file={tmp_path / 'no' / 'gfd'}")
    assert done.returncode == 1
    assert str(tmp_path / "no" / "gfd") in done.stderr
    assert "--output-file" in done.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--mode=off"], "choose one of file, node-feature, node"),
        (["--sleep-interval=soon", "--mode=file"], "use a duration"),
        ([], "NODE_NAME"),
        (["--mode=node", "--node-name=worker-1"], "kubeconfig"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(
    once: Once, args: list[str], said: str
) -> None:
    done = once("gpuslice", "labels", "--oneshot", *args)
    assert done.returncode == 1
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_fabric_is_told(node: SimNode, once: Once) -> None:
    for index in range(2):
        node.set(
            {
                f"gpu.{index}.fabric.state": 3,
                f"gpu.{index}.fabric.cluster": "5e5c2d80-1234-4000-8000-00000000abcd",
                f"gpu.{index}.fabric.clique": 9,
            }
        )
    done = once("gpuslice", "labels", "--oneshot", "--output-file", "")
    expected = "nvidia.com/gpu.clique=5e5c2d80-1234-4000-8000-00000000abcd.9"
    assert expected in done.stdout.splitlines()


class TestCluster:
    def test_the_node_is_labelled_and_old_labels_go(
        self, kubernetes: Kubernetes, once: Once, tmp_path: Path
    ) -> None:
        kubernetes.put(
            "nodes",
            "worker-1",
            metadata={
                "labels": {
                    "nvidia.com/gpu.present": "true",
                    "nvidia.com/mig-1g.5gb.count": "7",
                    "nvidia.com/gpu.count": "9",
                }
            },
        )
        args = (
            "labels", "--oneshot", "--no-timestamp", "--mode=node", "--node-name=worker-1",
            f"--kubeconfig={kubernetes.kubeconfig(tmp_path / 'kubeconfig')}",
        )  # fmt: skip
        done = once("gpuslice", *args)
        assert done.returncode == 0, done.stderr
        found = kubernetes.objects["nodes", "worker-1"]["metadata"]["labels"]
        assert found["nvidia.com/gpu.present"] == "true"
        assert found["nvidia.com/gpu.count"] == "2"
        assert "nvidia.com/mig-1g.5gb.count" not in found
        assert once("gpuslice", *args).returncode == 0
        assert kubernetes.count("PATCH") == 1

    def test_a_node_feature_is_made_and_follows_the_node(
        self, kubernetes: Kubernetes, node: SimNode, start: Start, tmp_path: Path
    ) -> None:
        owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "gfd", "uid": "uid-set"}
        kubernetes.put("pods", "gfd-x", metadata={"uid": "uid-pod", "ownerReferences": [owner]})
        process = start(
            GFD, "--sleep-interval=100ms", "--node-name=worker-1", "--namespace=gpu",
            "--pod-name=gfd-x", f"--kubeconfig={kubernetes.kubeconfig(tmp_path / 'kubeconfig')}",
        )  # fmt: skip
        place = ("nodefeatures", "nvidia-features-for-worker-1")
        wait_until(lambda: place in kubernetes.objects)
        metadata = kubernetes.objects[place]["metadata"]
        assert metadata["labels"] == {"nfd.node.kubernetes.io/node-name": "worker-1"}
        assert [o["kind"] for o in metadata["ownerReferences"]] == ["DaemonSet", "Pod"]

        def count() -> str:
            return str(kubernetes.objects[place]["spec"]["labels"]["nvidia.com/gpu.count"])

        assert count() == "2"
        node.faults.lost(0)
        wait_until(lambda: count() == "1")
        assert process.stop() == 0
        assert place in kubernetes.objects, "its owners take it with them"

    def test_an_api_server_that_is_away_is_waited_for(
        self, kubernetes: Kubernetes, node: SimNode, start: Start, tmp_path: Path
    ) -> None:
        kubernetes.put("nodes", "worker-1", metadata={"labels": {}})
        process = start(
            "gpuslice", "labels", "--sleep-interval=100ms", "--mode=node", "--node-name=worker-1",
            f"--kubeconfig={kubernetes.kubeconfig(tmp_path / 'kubeconfig')}",
        )  # fmt: skip
        process.wait_for_output("labels published")
        kubernetes.refuse_with = 503
        process.wait_for_output("the labels are not up to date")
        kubernetes.refuse_with = None
        node.faults.lost(0)
        process.send(signal.SIGHUP)

        def count() -> str:
            return str(
                kubernetes.objects["nodes", "worker-1"]["metadata"]["labels"][
                    "nvidia.com/gpu.count"
                ]
            )

        wait_until(lambda: count() == "1")
        assert process.stop() == 0
