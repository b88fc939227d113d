from hypothesis import given
from hypothesis import strategies as st

from gpuslice.config.option_values import OptionValue, parts
from gpuslice.config.value_parsers import (
    interval_seconds,
    memory_selection,
    resource_name,
    selection,
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
    assert selection("devices", references) == Selection(references=tuple(references))


@given(st.lists(st.one_of(INDICES.map(str), UUIDS.map("GPU-{}".format)), min_size=1, unique=True))
def test_a_list_survives_being_written_as_a_text(references: list[str]) -> None:
    text = "".join(f"{reference}," for reference in references)
    found = memory_selection(OptionValue(text, "memory-devices"))
    assert found == Selection(references=tuple(references))


@given(st.integers(1, 10**6))
def test_a_number_counts_devices(count: int) -> None:
    assert memory_selection(OptionValue(str(count), "memory-devices")) == Selection(count=count)


@given(st.lists(st.text(st.characters(exclude_characters=","), min_size=1).map(str.strip)))
def test_a_list_is_split_at_commas_and_blanks_do_not_count(words: list[str]) -> None:
    assert parts(" , ".join(words)) == tuple(word for word in words if word)


@given(st.integers(0, 23), st.integers(0, 59), st.integers(1, 59))
def test_durations_add_up(hours: int, minutes: int, seconds: int) -> None:
    found = interval_seconds("field", f"{hours}h{minutes}m{seconds}s")
    assert found == hours * 3600 + minutes * 60 + seconds


@given(st.from_regex(r"[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?", fullmatch=True))
def test_the_domain_is_added_once(name: str) -> None:
    assert resource_name("name", name) == f"nvidia.com/{name}"
    assert resource_name("name", f"nvidia.com/{name}") == f"nvidia.com/{name}"
