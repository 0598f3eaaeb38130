"""Sizes, durations and prices: what is read, what is refused in one line, what is printed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weave_scheduler.units import (
    format_bytes,
    format_duration,
    format_money,
    parse_bytes,
    parse_duration,
    parse_price,
)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("15.2GB", 15_200_000_000),
        ("64MiB", 64 * 2**20),
        ("1 KiB", 1024),
        ("0B", 0),
        ("4096", 4096),
        (4096, 4096),
        ("1.5kb", None),
        ("1.5kB", 1500),
        ("2TB", 2 * 10**12),
        ("1e3MB", 10**9),
    ],
)
def test_sizes_are_read_in_decimal_and_binary_units(text, count):
    if count is None:
        with pytest.raises(ValueError, match="unknown unit"):
            parse_bytes(text)
    else:
        assert parse_bytes(text) == count


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "GB",
        "-1GB",
        "1.5",
        "1 5GB",
        "5Gb",
        "5 parsecs",
        "1e999GB",
        -1,
        1.5,
        True,
        None,
        [],
        "\u0661GB",
    ],
)
def test_a_wrong_size_is_refused_in_one_line_that_says_what_is_allowed(wrong):
    with pytest.raises(ValueError, match="allowed: ") as caught:
        parse_bytes(wrong)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("100s", 100.0), ("5ms", 0.005), ("1.5 min", 90.0), ("2h", 7200.0), ("3us", 3e-6), ("0s", 0)],
)
def test_durations_are_read_in_seconds(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("wrong", ["100", 100, 1.0, "-5s", "5 S", "s", "5m", "", None, {}, "1e99h"])
def test_a_wrong_duration_is_refused_in_one_line_that_says_what_is_allowed(wrong):
    with pytest.raises(ValueError, match="allowed: ") as caught:
        parse_duration(wrong)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("wrong", ["1.85", -1, float("nan"), float("inf"), True, None])
def test_a_wrong_price_is_refused(wrong):
    with pytest.raises(ValueError, match="allowed: "):
        parse_price(wrong)


def test_a_price_is_a_number():
    assert parse_price(1.85) == 1.85
    assert parse_price(2) == 2.0


@given(st.integers(min_value=0, max_value=2**60))
def test_whole_bytes_come_back_as_they_are(count):
    assert parse_bytes(count) == parse_bytes(str(count)) == parse_bytes(f"{count}B") == count


@given(st.integers(min_value=0, max_value=2**59))
def test_printed_sizes_are_read_back_within_half_a_percent(count):
    assert parse_bytes(format_bytes(count)) == pytest.approx(count, rel=0.005, abs=0.5)


@given(st.floats(min_value=0, max_value=1e7))
def test_a_printed_duration_is_short(seconds):
    assert 0 < len(format_duration(seconds)) <= 14


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (4.5e-5, "45 us"), (0.0123, "12.3 ms"), (1.526, "1.53 s"), (123, "2 min 03 s"),
     (3900, "1 h 05 min"), (-2, "-2 s"), (float("nan"), "nan")],
)  # fmt: skip
def test_durations_are_printed_for_people(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize(("amount", "text"), [(0, "0.00"), (12.346, "12.35"), (0.01234, "0.0123")])
def test_money_is_printed_with_two_digits_or_more(amount, text):
    assert format_money(amount) == text
