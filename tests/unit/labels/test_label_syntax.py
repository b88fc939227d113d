"""The API server accepts the labels of any hardware."""

from __future__ import annotations

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpuslice.gpus.node_facts import NodeFacts, Vgpu
from gpuslice.labels.label_syntax import key_part, product, words
from gpuslice.labels.node_feature import is_ours
from gpuslice.slicing.rules import MigStrategy, Rules, SharingStrategy

from .nodes import A100, SMALL, T4, cut, labels, several, shared

KEY = re.compile(r"[a-z.]+/[A-Za-z0-9]([A-Za-z0-9_.\-]{0,61}[A-Za-z0-9])?")
VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.\-]{0,61}[A-Za-z0-9])?)?")
LONG = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"

some_text = st.text(max_size=90) | st.text("aA0-_. (®)/", max_size=90)


@given(name=some_text, other=some_text, machine=some_text, version=some_text, host=some_text)
def test_every_label_is_valid(name: str, other: str, machine: str, version: str, host: str) -> None:
    facts = NodeFacts(version, (12, 8), machine, vgpus=(Vgpu(host, host),))
    gpus = [cut(replace(A100, name=name), SMALL), *several(replace(T4, name=other), 1, 1)]
    for strategy in MigStrategy:
        rules = Rules(strategy, replicas=(shared(SharingStrategy.TIME_SLICING, 2),))
        for short, value in labels(gpus, rules, facts, timestamp=1).items():
            key = short if "/" in short else f"nvidia.com/{short}"
            assert KEY.fullmatch(key), key
            assert VALUE.fullmatch(value), (key, value)
            assert is_ours(key), key


def test_words_drop_characters_that_a_label_cannot_contain() -> None:
    assert words("NVIDIA  GeForce® RTX (TM) 4090") == "NVIDIA-GeForce-RTX-TM-4090"


def test_a_long_model_is_cut_and_its_suffixes_are_not() -> None:
    name = product(LONG, "MIG", "1g.24gb", "SHARED")
    assert name == "NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstat-MIG-1g.24gb-SHARED"
    assert len(name) == 63


@given(st.lists(some_text.map(words), min_size=2, max_size=6, unique=True))
def test_names_in_keys_stay_apart(names: list[str]) -> None:
    plain = {name.strip("-_.") for name in names}
    assert len({key_part(name, 40) for name in names}) == len(plain)


def test_two_long_models_have_labels_of_their_own() -> None:
    found = labels([replace(T4, name=LONG), *several(replace(T4, name=f"{LONG} II"), 2, 1)])
    counts = {k: v for k, v in found.items() if k.startswith("gpuslice.io/gpu.") and ".count" in k}
    assert sorted(counts.values()) == ["1", "2"]
