"""Reading the list of GPUs that a nested node was given, as hosts and shells write it."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.slicing.allocated_list import AllocatedDevicesError, parse_allocated_devices

A = "GPU-a5ff0fbb-a150-5524-8c2e-d954b2d4f1b7"
B = "GPU-0c9f6d2e-8f0a-5f64-9d9e-0f4c2c1b7a11"
MIG = "MIG-2cf74da6-cb27-5bbe-be02-6da14d711aca"
NAME = "NVIDIA_ALLOCATED_DEVICES"


@pytest.mark.parametrize(
    "text",
    [
        f"{NAME}={A},{B}\n",
        f"{NAME}={A},{B}",
        f"export {NAME}={A},{B}\n",
        f'{NAME}="{A},{B}"\n',
        f"{NAME}='{A}, {B}'  # mine\n",
        f"{NAME}={A},{B} # mine\n",
        f"# the GPUs of this node\n\nPATH=/bin:/usr/bin\n{NAME}={A},{B}\nOTHER=\n",
        f"  {NAME} = {A} , {B}  \r\n",
        f"{NAME}={A},{B}\n{NAME}={A},{B}\n",
        f"{A},{B}",
        f" {A}, {B}\n",
        f"{A} {B}\n",
        f"{A}\n{B}\n",
        f"# mine\n{A} # one\n{B};\n",
        f"{NAME}={A},,{B},\n",
        f"{NAME}={A}\n{B}\n",
        f'{NAME}="{A}\n{B}"\nOTHER=1\n',
        f'declare -x {NAME}="{A},{B}"\n',
        f"declare -rx {NAME}=$'{A}\\n{B}'\n",
        f"typeset -x {NAME}='{A} {B}';\n",
        f'export {NAME}="{A}\t{B}" # mine\n',
    ],
)
def test_all_ways_to_write_a_list_are_read_alike(text: str) -> None:
    assert parse_allocated_devices(text) == (A, B)


@pytest.mark.parametrize("device", [A, MIG, f"MIG-{A}/3/0", "0", "12", "0:1"])
def test_gpus_and_mig_devices_go_by_uuid_or_index(device: str) -> None:
    assert parse_allocated_devices(f"{NAME}={device}") == (device,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("\n \n# nothing\n", "empty"),
        (f"{NAME}=\n", "names no GPU"),
        (f'{NAME}=""\n', "names no GPU"),
        ("OTHER=1\n", "no line sets the variable"),
        (f"{NAME}={A},{A}", "more than once"),
        (f"{NAME}={A},{A.replace('a5ff', 'A5FF')}", "more than once"),
        (f"{NAME}={A}\n{NAME}={B}\n", "different lists"),
        (f"{NAME}=,\n", "names no GPU"),
        (f'{NAME}="{A}', "close the quotation mark"),
        (f'{NAME}="{A}"{B}', "remove what follows the quotation mark"),
        (f"{NAME}=all", "'all' is not valid: it is neither"),
        (f"{NAME}={A};{B}", "separate devices by commas, blanks or line breaks"),
        (f"{NAME}={A[:-1]}", "neither the UUID"),
        (f"{NAME}={A}\x00", r"control character '\\x00'"),
        (f"{NAME}={A}\x1b[31m", "control character"),
        ("0," * 40_000, "80000 bytes, and the limit is 65536"),
    ],
)
def test_what_is_wrong_with_a_list_is_said(text: str, message: str) -> None:
    with pytest.raises(AllocatedDevicesError, match=message) as caught:
        parse_allocated_devices(text)
    assert str(caught.value).startswith(f"{NAME}: ")
    assert len(str(caught.value)) < 500


@given(st.text(max_size=200))
def test_any_text_is_either_read_or_refused(text: str) -> None:
    try:
        devices = parse_allocated_devices(text)
    except AllocatedDevicesError:
        return
    assert devices
    assert len(set(devices)) == len(devices)


@pytest.mark.parametrize("separator", [",", " ", "\n", ", "])
@pytest.mark.parametrize(
    "script",
    [
        'printf "%s" "${{{name}}}"',
        'env | grep -A9 "^{name}"',
        "env",
        "declare -x",
        "declare -p {name}",
        "export -p",
        'for one in ${{{name}//,/ }}; do echo "$one"; done',
        'echo "export {name}=\\"${name}\\""',
    ],
)
def test_whatever_a_shell_writes_is_read(script: str, separator: str) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    done = subprocess.run(
        [bash, "-c", script.format(name=NAME)],
        env={NAME: separator.join([A, B]), "PATH": "/usr/bin:/bin", "OTHER": "a=b\n'c\n"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert parse_allocated_devices(done.stdout) == (A, B)


@pytest.mark.parametrize(
    "text",
    [
        " " * 65_000,
        f"{NAME}=" + " " * 65_000 + "x",
        f"export {NAME}" + " " * 65_000 + "x",
        f'{NAME}="' + " #" * 32_000,
        "declare " + "-x " * 21_000,
        f"{NAME}={A}" + ";" * 65_000,
        f"{NAME}={A}\n" * 1_000,
        f'{NAME}="\n' * 2_000,
    ],
)
def test_a_hostile_list_takes_no_time(text: str) -> None:
    began = time.process_time()
    with contextlib.suppress(AllocatedDevicesError):
        parse_allocated_devices(text)
    assert time.process_time() - began < 3.0
