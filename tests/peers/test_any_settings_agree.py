"""Nodes and settings that hypothesis chooses are advertised alike by both plugins."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuslice_sim.node import SimNode, create
from tests.surroundings import SCRATCH

from .agreement.configs import GPU, write
from .agreement.pair import started
from .agreement.requests import all_agree
from .build import Peers

MIG_LAYOUTS: tuple[list[str], ...] = (
    [],
    ["7g.40gb"],
    ["4g.20gb", "3g.20gb"],
    ["3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb"],
    ["2g.10gb", "2g.10gb", "2g.10gb"],
    ["1g.5gb"] * 3,
    ["1g.5gb"] * 7,
)


@dataclass(frozen=True)
class Setup:
    layouts: tuple[list[str], ...]
    strategy: str
    replicas: dict[str, int]
    rename: bool
    one_at_a_time: bool
    flags: tuple[str, ...]
    seed: int

    def config(self) -> dict[str, object]:
        if not self.replicas:
            return {}
        entries = [{"name": name, "replicas": n} for name, n in self.replicas.items()]
        sharing = {
            "renameByDefault": self.rename,
            "failRequestsGreaterThanOne": self.one_at_a_time,
            "resources": entries,
        }
        return {"sharing": {"timeSlicing": sharing}}

    def resources(self) -> set[str]:
        """Reckoned from the rules in NVIDIA's documentation."""
        names = set()
        for layout in self.layouts:
            if layout and self.strategy == "mixed":
                names |= {f"nvidia.com/mig-{kind}" for kind in layout}
            else:
                names.add(GPU)
        return {f"{n}.shared" if self.rename and n in self.replicas else n for n in names}


SHAREABLE = (GPU, *(f"nvidia.com/mig-{kind}" for kind in ("1g.5gb", "2g.10gb", "3g.20gb")))


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    strategy = draw(st.sampled_from(["none", "single", "mixed", "mixed"]))
    if strategy == "single":
        layout = draw(st.sampled_from([kinds for kinds in MIG_LAYOUTS if len(set(kinds)) < 2]))
        layouts = (layout, layout)
    else:
        layouts = (draw(st.sampled_from(MIG_LAYOUTS)), draw(st.sampled_from(MIG_LAYOUTS)))
    ways = st.sets(
        st.sampled_from(["envvar", "volume-mounts", "cdi-annotations", "cdi-cri"]), min_size=1
    )
    return Setup(
        layouts,
        strategy,
        draw(st.dictionaries(st.sampled_from(SHAREABLE), st.integers(2, 9))),
        draw(st.booleans()),
        draw(st.booleans()),
        (
            f"--mig-strategy={strategy}",
            f"--device-list-strategy={','.join(sorted(draw(ways)))}",
            f"--device-id-strategy={draw(st.sampled_from(['uuid', 'uuid', 'index']))}",
            f"--pass-device-specs={draw(st.sampled_from(['true', 'false']))}",
        ),
        draw(st.integers(0, 1000)),
    )


@pytest.fixture(scope="module")
def ground(peers: Peers, root_user: None) -> Iterator[tuple[Peers, SimNode, Path]]:
    with tempfile.TemporaryDirectory(prefix="peers-", dir=SCRATCH) as scratch:
        yield peers, create(Path(scratch) / "node", "a100x2-mig-mixed", driver=570), Path(scratch)


@settings(
    derandomize=True,
    database=None,
    max_examples=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(setup=setups())
def test_any_node_with_any_settings_is_advertised_alike(
    ground: tuple[Peers, SimNode, Path], setup: Setup
) -> None:
    peers, node, scratch = ground
    for gpu, layout in enumerate(setup.layouts):
        node.faults.mig(gpu, layout)
    flags = [
        *setup.flags,
        f"--config-file={write(scratch, setup.config())}",
        f"--driver-root={node.root}",
    ]
    with started(peers.device_plugin, node, scratch, flags, {}, {}) as pair:
        pair.by_index = "--device-id-strategy=index" in flags
        pair.wait_for(*setup.resources())
        all_agree(pair, seed=setup.seed)
