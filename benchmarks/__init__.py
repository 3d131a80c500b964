"""Benchmarks of bbsvi against its own alternatives and against other libraries: `python -m benchmarks NAME`."""
