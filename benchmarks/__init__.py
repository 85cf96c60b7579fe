"""Speed and memory, measured: `python -m benchmarks` runs all, `python -m benchmarks.fit` one.

`python -m benchmarks.attack` is another matter: whether what is promised holds when someone tries to break it.
"""
