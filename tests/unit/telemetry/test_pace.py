from __future__ import annotations

from gpuslice.telemetry.pace import Pace


def test_a_burst_does_not_wait_and_more_requests_do() -> None:
    pace = Pace(per_second=10, burst=3)
    assert [round(pace.delay("a", 100.0), 3) for _ in range(5)] == [0, 0, 0, 0.1, 0.2]


def test_a_client_that_waits_does_not_delay_another() -> None:
    pace = Pace(per_second=10, burst=1)
    for _ in range(20):
        pace.delay("a", 100.0)
    assert pace.delay("b", 100.0) == 0
    assert pace.delay("a", 110.0) == 0


def test_any_number_of_clients_is_remembered_in_bounded_memory() -> None:
    pace = Pace(per_second=1, burst=1)
    for number in range(10_000):
        pace.delay(str(number), 100.0)
    assert len(pace._used_until) <= 257
