"""Run every benchmark in turn."""

import runpy

for name in ("fit", "shrunk", "dirichlet", "predict", "cost", "collect", "deploy"):
    print(f"\n## benchmarks/{name}.py\n", flush=True)
    runpy.run_module(f"benchmarks.{name}", run_name="__main__")
