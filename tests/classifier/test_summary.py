"""The summary is that of images which the fits did not see."""

from dataclasses import asdict

import atta
from atta.calibrators.crossval import held_out
from atta.classifier.classifier import CalibratedClassifier
from atta.classifier.summary import Summary
from atta.run.collect import collect
from scenarios import POLICY, Doubtful, pixels


def test_the_summary_is_that_of_held_out_images(fitted, network, labels):
    record = collect(network, pixels(), labels, policy=POLICY, draws="stratified", progress=False)
    held = held_out(atta.CATTA(shrink=True), record.predictions, labels).probs
    summary = fitted.summary
    assert summary.after == atta.evaluate(held, labels, metrics=("brier", "ece", "nll"))
    assert summary.before == atta.evaluate(
        record.predictions.logits.softmax(1), labels, metrics=("brier", "ece", "nll")
    )
    assert (summary.method, summary.policy, summary.passes) == ("c-atta", POLICY, 4)
    assert (summary.images, summary.classes, summary.class_changes) == (60, 3, 0)
    assert fitted.mean_passes == 4
    lines = str(summary).splitlines()
    assert lines[0] == "c-atta · flip + 2 crop · 4 passes per image · 3 classes"
    before, after = summary.before, summary.after
    assert lines[1] == (
        f"cross-validated on 60 images, {summary.accuracy:.1%} right: "
        f"Brier {before['brier']:.4f} → {after['brier']:.4f}   "
        f"ECE {before['ece']:.4f} → {after['ece']:.4f}   "
        f"NLL {before['nll']:.4f} → {after['nll']:.4f}"
    )
    assert lines[2] == "class changes: 0"
    assert lines[3].split() == ["Brier", "of", "the", "top", "label", "NLL", "ECE", "passes"]
    assert [line.split("  ")[0] for line in lines[4:]] == [
        "vanilla",
        "temperature",
        "c-atta · flip + 2 crop",
    ]


def test_the_summary_shows_rivals_and_the_policies_that_were_tried(network, labels):
    summary = atta.calibrate(
        network, pixels(), labels, policy=7, method="mean-tta", progress=False
    ).summary
    vanilla, temperature, chosen = summary.rivals
    assert (vanilla["nll"], chosen["nll"]) == (summary.before["nll"], summary.after["nll"])
    assert (vanilla["passes"], temperature["passes"], chosen["passes"]) == (1, 1, summary.passes)
    assert temperature["method"] == "temperature"
    tried = str(summary).splitlines()[-1 if summary.after["nll"] < summary.before["nll"] else -2]
    assert all(f"{one['policy']} " in tried for one in summary.candidates)
    html = summary._repr_html_()
    assert html.count("<tr>") == 4
    assert "chosen from" in html


def test_a_summary_of_before_there_were_rivals_is_read(fitted):
    old = {name: value for name, value in asdict(fitted.summary).items() if name != "rivals"}
    summary = Summary(**old)
    assert "class changes: 0" in str(summary)
    assert "<table>" in summary._repr_html_()


def test_the_mean_of_the_passes_counts_only_the_images_that_go_on(network):
    record = collect(network, pixels(), policy=POLICY, draws="stratified", progress=False)
    classifier = CalibratedClassifier(network, Doubtful(), POLICY, image_shape=(3, 8, 8))
    classifier(pixels())
    assert Doubtful().passes(record.predictions).double().mean() == classifier.mean_passes


def test_the_verdict_compares_with_temperature_scaling_and_never_praises_a_loss(fitted):
    known = asdict(fitted.summary)
    rivals = [
        {"method": name, "policy": "", "brier": brier, "nll": nll, "ece": 0.0, "passes": 1}
        for name, brier, nll in (
            ("vanilla", 0.1, 0.4),
            ("temperature", 0.09, 0.38),
            ("a", 0.08, 0.3),
        )
    ]
    vanilla, _, ours = ({"brier": one["brier"], "nll": one["nll"]} for one in rivals)
    known |= {"before": vanilla, "rivals": rivals, "class_changes": 0}
    gained = Summary(**known | {"after": ours}).verdict
    assert gained == (
        "Use it: Brier score -20% and NLL -25% (temperature scaling alone: Brier score -10% and "
        "NLL -5%); every class stays the same."
    )
    assert "nothing was gained" in Summary(**known | {"after": {"nll": 0.5}}).verdict
