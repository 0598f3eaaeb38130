"""The cases of ``weave bench sched`` under pytest: shapes of the record, no times."""

from weave_scheduler.benchmarks.sched import run


def test_the_record_has_every_case():
    record = run(False, lambda line: None)
    names = {(case["name"], case["arm"]) for case in record["cases"]}
    assert {("decision", "worst-case fifo"), ("decision", "quantile fifo")} <= names
    assert ("monte_carlo", "recursion") in names
    growth = [case["params"]["jobs"] for case in record["cases"] if case["name"] == "growth"]
    assert growth == sorted(growth)
