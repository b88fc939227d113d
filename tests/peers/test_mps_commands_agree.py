"""The stand-in answers commands as NVIDIA's control program does, by driver branch."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.surroundings import SCRATCH, remove_directory

from .driver_programs import DriverPrograms
from .mps_pair import MpsPair, mps_pair

ALICE = 1000
RESET = "set_default_active_thread_percentage 100\nset_default_client_priority 0\n" + "".join(
    f"set_default_device_pinned_mem_limit {n} 0\n" for n in range(4)
)
READ_BACK = (
    "get_default_active_thread_percentage\nget_default_client_priority\nget_server_list\n"
    + "".join(f"get_default_device_pinned_mem_limit {n}\n" for n in range(4))
)

# Commands that need no server, and what people write after them.
PERCENTAGES = [
    "", "25", "33.3", "0.5", "0.04", "99.99", "100", "100.00001", "101", "0", "-1", "abc", "50 60",
    "20abc", "1e1", "1e", "0x10", "0x", "nan", "inf", "+27", ".5", "5.", ".", "2.25", "2.35",
    "25,5", "50%", "\t26",
]  # fmt: skip
MEMORY = [
    "1G", "1024M", "3g", "3GB", "3GiB", "3MiB", "512", "2048K", "512K", "1.5G", "-5G", "+5G", "0",
    "0M", "abc", "1T", "", "3001M", "1023M", "5 G", "G", "0x10G", "010M", "1e3M", "5MG", "5xG",
    "99999999999G", "17179869184G", "18446744073709551616M", "-1", "4M extra",
]  # fmt: skip
DEVICES = ["0", "1", "9", "31", "32", "-1", "abc", "", "GPU-12345678", "1x", "01", "4294967297"]
SERVERS = ["", "1", "x", "1 2", "1 0 1G", "-5", "99999999999"]
LINES = [
    *("foo", "foo bar", "", " ", "GET_SERVER_LIST", "help", "-h", "x" * 300, "quitx"),
    *("get_server_list", "get_server_list extra", "  get_server_list", "get_server_listx"),
    *(f"set_default_active_thread_percentage {value}" for value in PERCENTAGES),
    *(f"set_default_device_pinned_mem_limit 0 {value}" for value in MEMORY),
    *(f"set_default_device_pinned_mem_limit {device} 7G" for device in DEVICES),
    *(f"get_default_device_pinned_mem_limit {device}" for device in DEVICES),
    *(f"set_default_client_priority {value}" for value in ["", "0", "1", "2", "-1", "abc", "1x"]),
    *(f"get_server_status {value}" for value in SERVERS),
    *(f"shutdown_server {value}" for value in (*SERVERS, "1 -f", "-f")),
    *(f"get_client_list {value}" for value in SERVERS),
    *(f"get_device_client_list {value}" for value in SERVERS),
    *(f"get_active_thread_percentage {value}" for value in SERVERS),
    *(f"set_active_thread_percentage {value}" for value in SERVERS),
    *(f"get_device_pinned_mem_limit {value}" for value in SERVERS),
    *(f"set_device_pinned_mem_limit {value}" for value in SERVERS),
    *(f"terminate_client {value}" for value in SERVERS),
    *(f"ps {value}" for value in ("", "-p 1", "-p", "-p abc", "-x 1", "1", "-p1")),
    *(f"start_server {value}" for value in ("", "0", "-uid", "-uid x")),
    *("device_query", "lspart", "sm_partition add GPU-1 1"),
]


@pytest.fixture(scope="module")
def pair(driver_programs: DriverPrograms) -> Iterator[MpsPair]:
    scratch = Path(tempfile.mkdtemp(prefix="peers-", dir=SCRATCH))
    with mps_pair(driver_programs, scratch) as both:
        both.agree("-d")
        yield both
    remove_directory(scratch)


@pytest.mark.parametrize("user", [None, ALICE], ids=["root", "another user"])
def test_commands_are_answered_alike(pair: MpsPair, user: int | None) -> None:
    reset = f"{RESET}set_default_device_pinned_mem_limit 0 2G\n"
    pair.agree(lines=reset)
    for line in LINES:
        if user is None:
            pair.agree(lines=f"{reset}{line}\n{READ_BACK}")
        else:
            answer = pair.agree(lines=f"{line}\n{READ_BACK}", user=user)
            if pair.branch < 550:  # the other user may have changed something
                pair.agree(lines=reset)
            assert answer.status == 0


def test_input_of_several_lines_is_answered_alike(pair: MpsPair) -> None:
    for lines in (
        "",
        "get_default_active_thread_percentage",
        "get_default_active_thread_percentage\nfoo\nget_default_client_priority\n",
        "\n\nget_server_list\n",
    ):
        assert pair.agree(lines=RESET + lines).status == 0


@pytest.mark.parametrize(
    "line", ["quit", "quit -t 5", "start_server -uid 0", f"start_server -uid {ALICE + 1}"]
)
def test_another_user_is_refused_alike(pair: MpsPair, line: str) -> None:
    answer = pair.agree(lines=f"{line}\n", user=ALICE)
    assert answer.status == 0
    assert "rivilege" in answer.stdout


names = st.sampled_from(
    [
        "get_default_active_thread_percentage", "set_default_active_thread_percentage",
        "get_default_device_pinned_mem_limit", "set_default_device_pinned_mem_limit",
        "get_default_client_priority", "set_default_client_priority", "get_server_list",
        "get_server_status", "get_client_list", "shutdown_server", "terminate_client", "ps",
        "set_active_thread_percentage", "set_device_pinned_mem_limit",
    ]
)  # fmt: skip
numbers = st.one_of(
    st.integers(-3, 130).map(str),
    st.integers(-(1 << 65), 1 << 65).map(str),
    st.floats(-1, 101, allow_nan=False).map(lambda value: f"{value:.3g}"),
)
units = st.sampled_from(["", "", "M", "G", "K", "T", "m", "g", "GB", "MiB", " G", "%", ".5"])
words = st.one_of(
    st.builds(lambda number, unit: number + unit, numbers, units),
    st.text("0123456789abcdefGMKxX+-.,=%", max_size=12),
)
commands = st.builds(
    lambda name, arguments, gap: gap.join([name, *arguments]),
    names,
    st.lists(words, max_size=4),
    st.sampled_from([" ", "  ", "\t"]),
)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(lines=st.lists(commands, min_size=1, max_size=8), user=st.sampled_from([None, ALICE]))
def test_any_commands_are_answered_alike(pair: MpsPair, lines: list[str], user: int | None) -> None:
    text = "\n".join(lines) + "\n"
    if user is None:
        pair.agree(lines=RESET + text + READ_BACK)
    else:
        pair.agree(lines=RESET)
        pair.agree(lines=text + READ_BACK, user=user)
