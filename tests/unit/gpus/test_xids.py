from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.config.settings import HealthSettings
from gpuslice.gpus.xids import APPLICATION_XIDS, is_fatal, is_watched

xids = st.integers(1, 200)


def test_errors_of_applications_are_ignored_and_all_others_are_fatal() -> None:
    ignored = {xid for xid in range(1, 200) if not is_fatal(xid, HealthSettings())}
    assert ignored == {13, 31, 43, 45, 68, 109}


@pytest.mark.parametrize(
    ("settings", "fatal", "ignored"),
    [
        (HealthSettings(ignored=frozenset({48})), {79}, {48, 13}),
        (HealthSettings(fatal=frozenset({13})), {13, 79}, {31}),
        (HealthSettings(ignored=frozenset({48}), fatal=frozenset({48})), {48}, {13}),
        (HealthSettings(fatal=None), {13, 31, 79}, set()),
        (HealthSettings(ignored=frozenset({48}), fatal=None), {48}, set()),
        (HealthSettings(ignore_all=True), set(), {13, 48, 79}),
        (HealthSettings(ignore_all=True, fatal=frozenset({48})), {48}, {13, 79}),
        (HealthSettings(ignore_all=True, fatal=None), {13, 48, 79}, set()),
        (HealthSettings(enabled=False, fatal=None), set(), {13, 79}),
    ],
)
def test_the_settings_decide(settings: HealthSettings, fatal: set[int], ignored: set[int]) -> None:
    assert {xid for xid in fatal | ignored if is_fatal(xid, settings)} == fatal


@given(
    st.builds(
        HealthSettings,
        enabled=st.booleans(),
        ignored=st.frozensets(xids),
        fatal=st.none() | st.frozensets(xids),
        ignore_all=st.booleans(),
    ),
    xids,
)
def test_what_can_be_fatal_is_watched(settings: HealthSettings, xid: int) -> None:
    if is_fatal(xid, settings):
        assert is_watched(settings)
    if not is_watched(settings):
        assert not is_fatal(xid, settings)


def test_nothing_is_watched_if_no_xid_can_be_fatal() -> None:
    assert is_watched(HealthSettings())
    assert is_watched(HealthSettings(ignore_all=True, fatal=frozenset({48})))
    assert is_watched(HealthSettings(ignore_all=True, fatal=None))
    assert not is_watched(HealthSettings(ignore_all=True))
    assert not is_watched(HealthSettings(enabled=False))
    assert APPLICATION_XIDS
