"""The codes of the emulated device: documented in one table, probed ones from one record."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from weave_rt import probe

ROOT = Path(__file__).resolve().parent.parent
RECORD = json.loads((ROOT / "bench" / "records" / "driver_codes.json").read_text())
TABLE = ROOT / "docs" / "driver_behaviours.md"
SPEC = "emulated:h20?scale=4096&speed=50&capacity=2MiB"


def rows() -> list[list[str]]:
    """The cells of the table: number, call, condition, code, test, source."""
    lines = [line for line in TABLE.read_text().splitlines() if re.match(r"\| \d", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def recorded(case: dict[str, object]) -> dict[str, object]:
    """What a driver said, whether it was a real one or not."""
    return {key: case[key] for key in case if key != "unproven"}


def test_the_header_is_that_of_the_record() -> None:
    header = (ROOT / "csrc" / "emu" / "driver_codes.hpp").read_text()
    assert header == probe.header(RECORD), "run python -m weave_rt.probe --header (see its head)"


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("engine", ["threads", "stepped"])
def test_the_emulated_device_gives_the_recorded_codes(seed: int, engine: str) -> None:
    record = probe.probe(f"{SPEC}&engine={engine}&seed={seed}")
    assert record["format"] == "weave-bench"
    assert record["conditions"]["device"] == "emulated"
    assert [recorded(case) for case in record["cases"]] == [
        recorded(case) for case in RECORD["cases"]
    ]
    assert all(case["unproven"] for case in record["cases"])


def test_every_behaviour_has_rows_and_every_row_a_test() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "tests" / "cpp").glob("test_*.cpp"))
    tests = set(re.findall(r"^TEST\((\w+)\)", source, re.MULTILINE))
    assert {int(row[0]) for row in rows()} == set(range(1, 27))
    for row in rows():
        assert len(row) == 6, row
        assert row[4] in tests, row
        assert row[4].startswith(f"behaviour_{row[0]}_"), row
    named = {name for name in tests if name.startswith("behaviour_")}
    assert named == {row[4] for row in rows()}, "a test without a row"


def test_probed_rows_are_the_record() -> None:
    cases = {case["name"]: case for case in RECORD["cases"]}
    probed = {}
    for row in rows():
        assert re.fullmatch(r"documented|reported|chosen|probed \(\w+\)", row[5]), row
        if row[5].startswith("probed"):
            probed[row[5][len("probed (") : -1]] = row
    assert set(probed) == set(cases)
    for name, row in probed.items():
        assert int(row[0]) == cases[name]["behaviour"], row
        assert str(cases[name]["code"]) in row[3].split(", "), row


def test_the_command_writes_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record, header = tmp_path / "codes.json", tmp_path / "codes.hpp"
    assert probe.main(["--device", f"{SPEC}&seed=5", "--out", str(record)]) == 0
    assert probe.main(["--header", str(record), "--out", str(header)]) == 0
    assert "namespace weave::emu::codes" in header.read_text()
    assert probe.main(["--header", str(record)]) == 0
    assert capsys.readouterr().out == header.read_text()
