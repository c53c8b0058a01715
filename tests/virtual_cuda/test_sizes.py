"""A size means what its text says; anything else is refused in one clear sentence."""

from __future__ import annotations

import pickle
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_cuda import errors
from virtual_cuda.hooks import format_size, parse_size


@pytest.mark.parametrize(
    ("size", "count"),
    [
        (1024, 1024),
        (1, 1),
        (8e9, 8_000_000_000),
        ("1024", 1024),
        ("7 bytes", 7),
        ("7B", 7),
        ("8 GiB", 8 * 1024**3),
        ("1.5 GiB", 3 * 1024**3 // 2),
        ("512MB", 512_000_000),
        ("512MiB", 512 * 1024**2),
        ("  2 kib ", 2048),
        ("2 KB", 2000),
        ("1 TiB", 1024**4),
        ("0.1 GiB", 107374182),
    ],
)
def test_a_size_means_what_it_says(size: str | int | float, count: int) -> None:
    assert parse_size(size) == count


@pytest.mark.parametrize(
    "size",
    [
        *(
            "8 GB1",
            "",
            " ",
            "GiB",
            "8 G",
            "8 XiB",
            "-1 GiB",
            "0",
            "0 GiB",
            "0.1 bytes",
            "1e9",
            "1,5 GiB",
            "1..5 GiB",
        ),
        *("nan", "inf", "٨ GiB", "1 GiB\n2", "9" * 5000, "8 GiB 8 GiB", "1 k\u0131b"),
        *(0, -1, 1.5, 0.0, float("nan"), float("inf"), True, False, None, b"8 GiB", [8]),
    ],
)
def test_what_is_no_size_is_refused(size: object) -> None:
    with pytest.raises(errors.BadSize) as caught:
        parse_size(size)  # type: ignore[arg-type]
    assert caught.value.size is size


def test_the_refusal_shows_the_text_and_two_good_ones() -> None:
    with pytest.raises(ValueError, match="is not a size") as caught:
        parse_size("8 GB1")
    assert str(caught.value) == (
        '\'8 GB1\' is not a size; write a number of bytes, or for example "8 GiB" or "512 MiB"'
    )


@given(st.integers(1, 10**18))
def test_a_number_of_bytes_is_itself_in_either_spelling(count: int) -> None:
    assert parse_size(count) == parse_size(str(count)) == parse_size(f"{count} bytes") == count


@given(st.integers(1, 10**6), st.sampled_from(["KiB", "MiB", "GiB", "TiB"]))
def test_binary_units_are_powers_of_1024(count: int, unit: str) -> None:
    power = ["KiB", "MiB", "GiB", "TiB"].index(unit) + 1
    assert (
        parse_size(f"{count} {unit}") == parse_size(f"{count}{unit.lower()}") == count * 1024**power
    )


@given(st.text())
def test_any_text_is_a_size_or_a_bad_size(text: str) -> None:
    with suppress(errors.BadSize):  # and nothing else: no overflow, no unicode surprise
        assert parse_size(text) >= 1


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (512, "512 bytes"),
        (1024, "1024 bytes"),
        (1025, "1.00 KiB"),
        (1024**2, "1024.00 KiB"),
        (20 * 1024**2, "20.00 MiB"),
        (1024**3, "1024.00 MiB"),
        (1024**3 + 1, "1.00 GiB"),
        (3 * 1024**3 // 2, "1.50 GiB"),
    ],
)
def test_sizes_print_as_torch_prints_them(count: int, text: str) -> None:
    assert format_size(count) == text


@given(st.integers(1, 2**50))
def test_a_printed_size_reads_back_within_its_two_decimals(count: int) -> None:
    text = format_size(count)
    unit = parse_size("1 " + text.split()[1])
    assert abs(parse_size(text) - count) <= unit * 0.005 + 1


@pytest.mark.parametrize(
    ("error", "kinds", "words"),
    [
        (errors.BadDeviceCount(0), (ValueError, RuntimeError), "0 is not a number of devices"),
        (
            errors.AlreadyOpen("virtual CUDA device"),
            (RuntimeError,),
            "a virtual CUDA device is already open in this process",
        ),
        (
            errors.RealDeviceInUse("cuda:1"),
            (RuntimeError,),
            "already uses the real device 'cuda:1'",
        ),
        (errors.DeviceClosed("cuda:0"), (RuntimeError,), "'cuda:0', whose `with` block has ended"),
        (
            errors.TorchUnsupported("Tensor._make_wrapper_subclass", "2.99.0"),
            (RuntimeError,),
            (
                "this torch (2.99.0) has changed Tensor._make_wrapper_subclass, which the virtual "
                "CUDA device is built on"
            ),
        ),
    ],
)
def test_an_error_is_one_line_with_its_data_and_survives_pickling(
    error: errors.DeviceError, kinds: tuple[type[Exception], ...], words: str
) -> None:
    assert words in str(error)
    assert "\n" not in str(error)
    assert all(isinstance(error, kind) for kind in (*kinds, errors.VirtualCudaError))
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
