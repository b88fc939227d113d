"""Labels that the agent publishes."""

from __future__ import annotations

from pathlib import Path

from .rig import AGENT, GPU, Rig, eventually


def labels(file: Path) -> dict[str, str]:
    if not file.exists():
        return {}
    return dict(line.split("=", 1) for line in file.read_text().splitlines())


def test_labels_follow_the_settings_to_another_file(rig: Rig) -> None:
    first, second = rig.directory / "first", rig.directory / "second"

    def settings(file: Path, replicas: int) -> str:
        return (
            f"flags: {{gfd: {{outputFile: {file}, sleepInterval: 10m}}}}\n"
            f"sharing: {{timeSlicing: {{resources: [{{name: gpu, replicas: {replicas}}}]}}}}\n"
        )

    with rig.plugin(rig.config(settings(first, 2)), "--labels=file", entry=AGENT) as agent:
        rig.kubelet.wait_for(GPU)
        eventually(lambda: labels(first).get("nvidia.com/gpu.replicas") == "2", "the labels")
        rig.config(settings(first, 3))
        eventually(lambda: labels(first).get("nvidia.com/gpu.replicas") == "3", "new labels")
        rig.config(settings(second, 3))
        eventually(lambda: labels(second).get("nvidia.com/gpu.count") == "2", "the new file")
        eventually(lambda: not first.exists(), "the old file to be removed")
        assert agent.stop() == 0
    assert not second.exists()
