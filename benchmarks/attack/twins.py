"""Two processes with one output: a right result, or one sentence for the second."""

import tempfile
import time
from pathlib import Path

from benchmarks.attack import toys
from benchmarks.attack.children import Child, answer, run
from benchmarks.attack.tally import Attack, Effort, Tally
from benchmarks.attack.writers import Resumed, _here, _remove, inside, leftovers, resumed, warm


def twins(tally: Tally, effort: Effort) -> None:
    """Start the same command twice, at once and one a little later."""
    warm()
    with tempfile.TemporaryDirectory() as home:
        folder, log = Path(home) / "shop", Path(home) / "log.txt"
        answer(lambda: (toys.workshop(folder), toys.photos(folder / "photos", 60))[0].name, log=log)
        keep = {path.name for path in folder.iterdir()} | {"__pycache__"}
        for one in resumed():
            path, act = folder / one.output, _here(folder, (*one.words, one.output))
            alone = run(act, log=log)
            if alone.code:
                tally.count(
                    False, f"{one.name} does not work: {alone.trouble or alone.text[-200:]}"
                )
                continue
            expected = answer(lambda o=one, p=path: o.read(p), log=log)
            draw = effort.random(one.name)
            for i in range(effort.times(2)):
                _remove(path)
                pause = draw.uniform(0, alone.seconds) if i % 2 else 0.0
                _pair(tally, one, folder, act, pause, expected, keep)
            _remove(path)


def _pair(
    tally: Tally,
    one: Resumed,
    folder: Path,
    act: object,
    pause: float,
    expected: str,
    keep: set[str],
) -> None:
    """Run two of them, and look at what both say and at what is there."""
    logs, path = [folder.parent / f"twin{i}.txt" for i in range(2)], folder / one.output
    first = Child(act, log=logs[0])  # type: ignore[arg-type]
    time.sleep(pause)
    second = Child(act, log=logs[1])  # type: ignore[arg-type]
    ended = [first.wait(), second.wait()]
    what = f"{one.name} twice, {pause:.1f} s apart"
    for end in ended:
        tally.count(not end.trouble, f"{what}: {end.trouble}")
    tally.count(
        any(not end.code for end in ended),
        f"{what}: neither ended well: {ended[0].text[-150:]} {ended[1].text[-150:]}",
    )
    try:
        found = answer(lambda: one.read(path), log=folder.parent / "log.txt")
    except RuntimeError as error:
        found = str(error)
    same = found == expected
    tally.count(
        same,
        f"{what}: exit codes {[end.code for end in ended]}, and another result than alone: {found[:100]}",
    )
    left = leftovers(folder, keep | {one.output}) + inside(folder)
    tally.count(not left, f"{what}: there is {', '.join(left[:3])}")
    for name in leftovers(folder, keep | {one.output}):
        _remove(folder / name)


ATTACKS = (
    Attack(
        "twins", "the same command twice with one output: a right result, or a sentence", twins, 400
    ),
)
