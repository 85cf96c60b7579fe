"""C-ATTA's weights, free or drawn towards equal, with its guard and without, beside plain means with a temperature.

python -m benchmarks.weights [--draws 10]
"""

from atta import CATTA, MeanTTATemperature
from benchmarks.records import AUG8, Means, draw, draws_asked, networks

VIEWS = {
    "CIFAR-10": (("flip",), ("nudge",), AUG8),
    "CIFAR-10, second network": (("flip",), AUG8),
    "CIFAR-100": (("flip",), ("nudge",), AUG8),
    "AID": (("flip",), ("crop",), ("flip", "crop"), AUG8),
}
METHODS = {
    "c-atta": CATTA(),
    "shrunk": CATTA(shrink=True),
    "unguarded": CATTA(keep_class=False),
    "mean of logits": MeanTTATemperature(),
    "mean of probabilities": MeanTTATemperature(space="probabilities"),
}


def main() -> None:
    """Print a table for each network and its views."""
    draws = draws_asked(__doc__)
    for network, record in networks().items():
        labels = record.require_labels()
        for kinds in VIEWS[network]:
            shown, means = record.predictions.select(kinds), Means(len(record))
            for seed in range(draws):
                fit, test = draw(len(record), 1000 + seed)
                for name, method in METHODS.items():
                    means.add(
                        name, test, method.fit(shown[fit], labels[fit])(shown[test]), labels[test]
                    )
            print(
                f"{network}, {' + '.join(kinds)}: in % of c-atta, NLL, Brier, multi-class Brier, errors"
            )
            for name in METHODS:
                cells = "  ".join(
                    f"{more:+6.2f} ± {half:.2f}" for more, half in means.against(name, "c-atta")
                )
                print(f"  {name:22} {cells}", flush=True)


if __name__ == "__main__":
    main()
