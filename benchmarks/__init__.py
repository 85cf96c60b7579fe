"""Speed, memory and the class guarantee, measured: `python -m benchmarks` runs all, `python -m benchmarks.fit` one."""
