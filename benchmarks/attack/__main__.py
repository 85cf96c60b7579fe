"""Attack the package, and list what failed: python -m benchmarks.attack [--long] [--only NAME] [--page FILE]."""

import argparse
import sys
import time
from pathlib import Path

from atta.lab.workers import machine
from benchmarks.attack import page, runner
from benchmarks.attack.tally import Effort


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attack", description=__doc__)
    parser.add_argument("--long", action="store_true", help="ten times as much of what is random")
    parser.add_argument(
        "--only",
        default="",
        metavar="NAME",
        help="only sections and attacks with this in their name",
    )
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="also write the page, docs/reliability.md"
    )
    parser.add_argument("--seed", type=int, default=0, help="of all that is random")
    parser.add_argument(
        "--scale", type=float, default=None, help="how much is tried; 1 is the usual, --long is 10"
    )
    parser.add_argument("--list", action="store_true", help="name the attacks and stop")
    for name in ("--worker", "--log", "--skip"):  # what the command says to its own processes
        parser.add_argument(name, help=argparse.SUPPRESS)
    given = parser.parse_args()
    effort = Effort(scale=given.scale or (10.0 if given.long else 1.0), seed=given.seed)
    if given.worker:
        return runner.work(given.worker, given.only, effort, int(given.skip), Path(given.log))
    if given.list:
        return print(
            "\n".join(
                f"{section}: {one.name}"
                for section in runner.SECTIONS
                for one in runner.attacks(section)
            )
        )
    sections = [section for section in runner.SECTIONS if runner.attacks(section, given.only)]
    began = time.monotonic()
    outcomes = runner.run(
        sections, given.only, effort, say=lambda line: print(line, file=sys.stderr, flush=True)
    )
    seconds = time.monotonic() - began
    print(page.table(outcomes))
    print(page.failures(outcomes))
    print(f"{seconds:.0f} s on commit {machine()['commit']}")
    if given.page:
        command = " ".join(["python -m benchmarks.attack", *sys.argv[1:]])
        given.page.write_text(
            page.page(outcomes, seconds=seconds, command=command), encoding="utf-8"
        )
    raise SystemExit(not outcomes or any(outcome.unknown for outcome in outcomes))


if __name__ == "__main__":
    main()
