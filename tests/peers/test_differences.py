"""The list of accepted differences is complete: every entry is shown by a test."""

from __future__ import annotations

from . import (
    test_differences_of_answers,
    test_differences_of_devices,
    test_differences_of_mps,
    test_differences_of_preferences,
    test_differences_of_settings,
)
from .agreement import differences as d

MODULES = (
    test_differences_of_answers,
    test_differences_of_devices,
    test_differences_of_mps,
    test_differences_of_preferences,
    test_differences_of_settings,
)


def test_every_accepted_difference_is_shown() -> None:
    shown = {one for module in MODULES for one in d.shown_by(vars(module))}
    assert sorted(one.id for one in shown) == sorted(one.id for one in d.ACCEPTED)
    assert len({one.id for one in d.ACCEPTED}) == len(d.ACCEPTED)
