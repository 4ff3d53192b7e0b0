"""Benchmarks, run as `python -m benchmarks.NAME`; no data is shipped."""
