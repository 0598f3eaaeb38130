"""``python -m weave_rt.probe``: record the codes of a driver that no documentation gives.

The emulated device is built with the codes of one such record: ``bench/records/driver_codes.json``
becomes ``csrc/emu/driver_codes.hpp`` (``--header``), and both are committed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weave_rt import _core
from weave_rt.benchmarks.record import conditions
from weave_rt.device import open_device, resolve_spec

__all__ = ["header", "main", "probe"]


def probe(device: str) -> dict[str, Any]:
    """Ask the driver of a device; the record as written to a file."""
    spec = resolve_spec(device)
    opened = open_device(spec)
    try:
        block = conditions(opened)
    finally:
        opened.close()
    # An emulated device only repeats what was recorded, proven or not.
    proven = not spec.startswith("emulated:")
    cases = [{**case, "unproven": not proven} for case in _core.probe(spec)]
    return {
        "format": "weave-bench",
        "version": 1,
        "conditions": block,
        "what": "driver_codes",
        "cases": cases,
    }


def header(record: dict[str, Any]) -> str:
    """The C++ header with the codes of a record."""
    lines = [
        "// emu/driver_codes.hpp: the codes that a driver gives where its documentation is silent.",
        "// Written by `python -m weave_rt.probe --header RECORD --out THIS` with RECORD being",
        "// bench/records/driver_codes.json. Unproven: not recorded on a real driver yet.",
        "#pragma once",
        "",
        '#include "driver/abi.hpp"',
        "",
        "namespace weave::emu::codes {",
        "",
    ]
    for case in record["cases"]:
        mark = ", unproven" if case["unproven"] else ""
        lines.append(f"// {case['behaviour']}: {case['call']}, {case['mistake']}{mark}")
        lines.append(f"inline constexpr cu::Status {case['name']} = {case['code']};")
    return "\n".join([*lines, "", "}  // namespace weave::emu::codes", ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Write a record, or the header of one."""
    parser = argparse.ArgumentParser(prog="python -m weave_rt.probe", description=__doc__)
    parser.add_argument("--device", default="auto", help="auto, cuda:N or emulated:... (auto)")
    parser.add_argument("--out", type=Path, help="file for the record (standard output)")
    parser.add_argument(
        "--header", type=Path, metavar="RECORD", help="write the C++ header of a record instead"
    )
    options = parser.parse_args(arguments)
    if options.header is not None:
        text = header(json.loads(options.header.read_text()))
    else:
        text = json.dumps(probe(options.device), indent=1) + "\n"
    if options.out is None:
        sys.stdout.write(text)
    else:
        options.out.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
