from __future__ import annotations

import pytest

from gpuslice.config.errors import ConfigError
from gpuslice.config.timing import Timing, read_timing


def test_times_have_defaults_and_can_be_changed_one_by_one() -> None:
    assert read_timing({}) == Timing()
    assert read_timing({"GPUSLICE_TIMING": "retry=0.5, mps_probe=2"}) == Timing(
        retry=0.5, mps_probe=2.0
    )


@pytest.mark.parametrize("text", ["retri=1", "retry", "retry=", "retry=0", "retry=-1", "retry=nan"])
def test_a_wrong_time_is_an_error_that_names_it(text: str) -> None:
    with pytest.raises(ConfigError, match=f"GPUSLICE_TIMING: '{text}'"):
        read_timing({"GPUSLICE_TIMING": text})
