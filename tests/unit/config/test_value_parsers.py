import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.config.errors import ConfigError
from gpuslice.config.value_parsers import (
    parse_address,
    parse_interval,
    parse_memory_selection,
    parse_resource_name,
    parse_selection,
    split_list,
)
from gpuslice.slicing.rules import Selection

INDICES = st.integers(0, 999_999)
UUIDS = st.uuids().map(str)
REFERENCES = st.one_of(
    INDICES.map(str),
    st.tuples(INDICES, INDICES).map(lambda pair: f"{pair[0]}:{pair[1]}"),
    UUIDS.map("GPU-{}".format),
    UUIDS.map("MIG-{}".format),
    st.tuples(UUIDS, INDICES, INDICES).map(lambda mig: "MIG-GPU-{}/{}/{}".format(*mig)),
)


@given(st.lists(REFERENCES, min_size=1, unique=True))
def test_a_list_of_references_is_kept_as_it_is(references: list[str]) -> None:
    assert parse_selection("devices", references) == Selection(references=tuple(references))


@given(st.lists(st.one_of(INDICES.map(str), UUIDS.map("GPU-{}".format)), min_size=1, unique=True))
def test_a_list_can_be_written_as_text(references: list[str]) -> None:
    text = "".join(f"{reference}," for reference in references)
    found = parse_memory_selection("memory-devices", text)
    assert found == Selection(references=tuple(references))


@given(st.integers(1, 10**6))
def test_a_number_counts_devices(count: int) -> None:
    assert parse_memory_selection("memory-devices", str(count)) == Selection(count=count)


@given(st.lists(st.text(st.characters(exclude_characters=","), min_size=1).map(str.strip)))
def test_a_list_is_split_at_commas_without_spaces(words: list[str]) -> None:
    assert split_list(" , ".join(words)) == tuple(word for word in words if word)


@given(st.integers(0, 23), st.integers(0, 59), st.integers(1, 59))
def test_durations_add_up(hours: int, minutes: int, seconds: int) -> None:
    found = parse_interval("field", f"{hours}h{minutes}m{seconds}s")
    assert found == hours * 3600 + minutes * 60 + seconds


@given(st.from_regex(r"[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?", fullmatch=True))
def test_the_domain_is_added_once(name: str) -> None:
    assert parse_resource_name("name", name) == f"nvidia.com/{name}"
    assert parse_resource_name("name", f"nvidia.com/{name}") == f"nvidia.com/{name}"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":9400", (None, 9400)),
        ("0.0.0.0:9400", ("0.0.0.0", 9400)),
        ("[::1]:9400", ("::1", 9400)),
        ("localhost:9400", ("localhost", 9400)),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, address: tuple[str | None, int]) -> None:
    assert parse_address("metrics-address", text) == address


@pytest.mark.parametrize(
    "text", ["9400", "host:", "::1:9400", ":99999", "http://x:1", "[]:1", "a b:1", "[x]:1"]
)
def test_other_addresses_are_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^metrics-address: .*use host:port"):
        parse_address("metrics-address", text)
