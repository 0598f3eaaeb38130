"""Benchmark cases of the runtime, called by ``weave bench``, by ``bench/`` and by device_check.sh.

One module per question; each has ``run(...)`` that returns a record of format ``weave-bench``.
"""
