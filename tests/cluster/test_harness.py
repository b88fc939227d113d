"""The harness itself: what it prints works, and a killed run does not trouble the next."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from gpuslice_sim.mps.launch import is_running
from tests.peers.build import Say

from .build import Binaries
from .harness import Cluster, NodeSpec, eventually
from .harness.runs import Run
from .pods import container, pod


def test_a_killed_run_takes_its_containers_along_and_is_swept_by_the_next(
    binaries: Binaries, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    with output.open("wb") as file:
        harness = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.harness", "node-x=t4x2"],
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        eventually(
            lambda: "kubectl logs" in output.read_text(),
            "it runs",
            timeout=600,
            explain=output.read_text,
        )
        commands = [line for line in output.read_text().splitlines() if line.startswith("  ")]
        waiting = "kubectl wait --for=condition=Ready --timeout=240s pod/six"
        # It is ready before it has said anything.
        until_said = f"until {commands[-1].strip()} | grep limit_bytes; do sleep 0.5; done"
        script = "\n".join(["set -e", *commands[:-1], waiting, until_said])
        done = subprocess.run(
            ["timeout", "600", "sh", "-c", script], capture_output=True, text=True, check=False
        )
        assert '"limit_bytes": 6442450944' in done.stdout, done.stderr
        [run] = set(re.findall(r"KUBECONFIG=/tmp/gsc-(\w{6})/", output.read_text()))
        assert traces(run)
    finally:
        os.kill(harness.pid, signal.SIGKILL)
        harness.wait()
    eventually(lambda: not any(map(is_running, processes(run))), "its processes are gone")
    Run().close(tmp_path / "logs")
    assert traces(run) == []


def test_the_cluster_that_runs_is_left_alone_by_a_new_run(cluster: Cluster, tmp_path: Path) -> None:
    Run().close(tmp_path / "logs")
    for node in cluster.nodes:
        assert node.directory.exists()
        assert Path(f"/sys/class/net/{node.bridge}").exists()


def test_the_scheduler_asks_an_extender(binaries: Binaries, say: Say) -> None:
    asked: list[str] = []
    with serve_filter(asked) as url:
        extender = {"urlPrefix": url, "filterVerb": "filter", "nodeCacheCapable": True}
        node = NodeSpec("node-x", agent=(), mps=False)
        with Cluster([node], extenders=[extender], binaries=binaries, say=say) as cluster:
            cluster.create(pod("plain", container(0, command=["sleep", "1000"])))
            cluster.wait_for_pod("plain")
    assert set(asked) == {"plain"}


@contextmanager
def serve_filter(asked: list[str]) -> Iterator[str]:
    """An extender that finds every node good and notes for which pods it was asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(question["Pod"]["metadata"]["name"])
            answer = json.dumps({"NodeNames": question["NodeNames"]}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def traces(run: str) -> list[str]:
    """Cgroups, bridges and directories of a run."""
    places = [Path("/tmp"), Path("/sys/class/net"), *Path("/sys/fs/cgroup").glob("*")]
    return [str(path) for place in places for path in place.glob(f"gsc*{run}*")]


def processes(run: str) -> set[int]:
    """The run's own, and all in its containers: those belong to a cgroup of the run."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            about = (entry / "cmdline").read_text() + (entry / "cgroup").read_text()
        except OSError:
            continue
        if f"gsc-{run}" in about:
            found.add(int(entry.name))
    return found
