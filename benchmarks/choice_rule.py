"""How thrifty the choice of a policy should be: what 4 passes gain of what V-ATTA gains with 17, by the rule of choice.

    python -m benchmarks.choice_rule [--draws 10]

Policies of the library that the records hold; of stratified views the first ones stand for those of a policy with fewer.
"""

from collections.abc import Mapping

from torch import Tensor

from atta import CATTA, VATTA, Predictions, Record, TemperatureScaling
from atta.calibrators.crossval import GAIN, held_out, losses
from atta.data.views import POLICIES, Policy
from benchmarks.records import AUG8, Means, draw, draws_asked, networks

BUDGET, RULES = 4, (0.0, 0.1, 0.25, 0.5, 1.0)


def seen(predictions: Predictions, policy: Policy) -> Predictions:
    """What a policy shows of a record that may have more repeats."""
    return Predictions(
        predictions.logits,
        {kind: predictions.views[kind][:, :r] for kind, r in policy.repeats.items()},
    )


def chosen(held: Mapping[str, Tensor], passes: Mapping[str, int], rule: float) -> str:
    """The policy of fewest passes within so many standard errors of the best; within one, if it has no views."""
    best = min(held.values(), key=lambda loss: float(loss.mean()))

    def close(name: str) -> bool:
        above = held[name] - best
        error = float(above.std()) / len(above) ** 0.5
        return float(above.mean()) <= max(GAIN, (1.0 if passes[name] == 1 else rule) * error)

    return min(filter(close, held), key=lambda name: (passes[name], float(held[name].mean())))


def measured(record: Record, draws: int) -> tuple[Means, dict[float, list[str]]]:
    """Every policy and every rule on the images that were not fitted on, and what the rules chose."""
    held_repeats = {kind: view.shape[1] for kind, view in record.predictions.views.items()}
    policies = {"temperature": Policy(())} | {
        name: one
        for name, one in POLICIES.items()
        if one.passes <= BUDGET
        and all(held_repeats.get(kind, 0) >= r for kind, r in one.repeats.items())
    }
    passes = {name: one.passes for name, one in policies.items()}
    means, choices = Means(len(record)), {rule: list[str]() for rule in RULES}
    labels = record.require_labels()
    for seed in range(draws):
        fit, test = draw(len(record), seed)
        held, answers = {}, {}
        for name, policy in policies.items():
            shown, method = (
                seen(record.predictions, policy),
                CATTA() if policy.terms else TemperatureScaling(),
            )
            held[name] = losses(held_out(method, shown[fit], labels[fit]).probs, labels[fit])
            answers[name] = method.fit(shown[fit], labels[fit])(shown[test])
        answers["v-atta, 17 passes"] = VATTA(views=AUG8).fit(record.predictions[fit], labels[fit])(
            record.predictions[test]
        )
        for rule in RULES:
            choices[rule].append(chosen(held, passes, rule))
            answers[f"rule {rule}"] = answers[choices[rule][-1]]
        for name, probs in answers.items():
            means.add(name, test, probs, labels[test])
    return means, choices


def main() -> None:
    """Print a section for each network."""
    draws = draws_asked(__doc__)
    for network, record in networks().items():
        means, choices = measured(record, draws)
        start, goal = (means.of(name).mean(dim=1) for name in ("temperature", "v-atta, 17 passes"))
        print(
            f"{network}: of what V-ATTA gains with 17 passes, Brier (NLL); then how much more than temperature, Brier, NLL"
        )
        for name in means.sums:
            gain = (start - means.of(name).mean(dim=1)) / (start - goal)
            nll, brier, *_ = means.against(name, "temperature")
            apart = f"{brier[0]:+.1f} ± {brier[1]:.1f} %  {nll[0]:+.1f} ± {nll[1]:.1f} %"
            print(f"  {name:24} {gain[1]:4.0%} ({gain[0]:4.0%})   {apart}")
        for rule, names in choices.items():
            print(f"  {rule}: {', '.join(names)}", flush=True)


if __name__ == "__main__":
    main()
