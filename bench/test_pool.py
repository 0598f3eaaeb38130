"""The cases of ``weave bench pool`` under pytest, small: what must hold of any record, no times."""

from weave_rt.benchmarks.pool import lines, run

SPEC = "emulated:h20?scale=1024&speed=100"
SIZE = (64 << 20) - 12345


def test_the_record_says_what_was_asked():
    record = run(SPEC, pool_bytes=SIZE, repeats=2)
    cases = {(case["name"], case["arm"]): case for case in record["cases"]}
    assert set(cases) == {
        ("growth", "weave"), ("growth", "plain"), ("spill", "weave"), ("return", "weave"),
    }  # fmt: skip
    assert all(case["n"] == 2 for case in cases.values())
    assert cases["spill", "weave"]["bytes_out"] >= SIZE // 2
    pool = record["pool"]
    assert pool["page_kind"] in ("small", "transparent", "hugetlb")
    assert 0 <= pool["overhead"] <= 0.02
    assert 0 <= pool["overhead_in_use"] <= 0.02
    assert pool["resident_growth_spill"] < 256 << 20
    assert pool["resident_growth_return"] < 256 << 20
    assert len(lines(record)) == 3
