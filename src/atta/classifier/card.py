"""The card of a shared classifier: Markdown, made of what its file says, with a reliability diagram.

All numbers are the summary's: cross-validated, on images that the network was not trained on and each fit did not see.
Where charts cannot be drawn (`atta[report]`), the bins stand in a table.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from atta.calibrators.shift import Adaptation
from atta.data.preprocess import Preprocess
from atta.results.words import metric_name

PICTURE = "reliability.png"
FEW = 10  # classes that are named in a line
MARKUP = set("<>&`*[]!|#~\\")  # what HTML and Markdown give a meaning to
BIBTEX = """\
@article{conde2023approaching,
  title   = {Approaching Test Time Augmentation in the Context of Uncertainty Calibration for Deep Neural Networks},
  author  = {Conde, Pedro and Barros, Tiago and Lopes, Rui L. and Premebida, Cristiano and Nunes, Urbano J.},
  journal = {arXiv preprint arXiv:2304.05104},
  year    = {2023}
}"""

About = Mapping[str, Any]
"""What `CalibratedClassifier.about` says, which is what classifier.json holds."""


def text(about: About, *, picture: bool = False, repo_id: str = "user/name") -> str:
    """Write the card, without its front matter."""
    summary = about["summary"]
    parts = [
        f"# {repo_id.rpartition('/')[2]}\n\n{_what(about)}",
        f"## Use it\n\n{_use(about, repo_id)}",
        *([] if summary is None else [f"## How well it knows\n\n{_measured(summary, picture)}"]),
        f"## Citation\n\n```bibtex\n{BIBTEX}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def drawable(about: About) -> bool:
    """Whether there is something to draw, and what draws it is installed."""
    return about["summary"] is not None and all(
        find_spec(name) for name in ("altair", "vl_convert")
    )


def draw(about: About, folder: Path) -> Path:
    """Write the reliability diagrams before and after, on white: a page may be dark, and the ink is not."""
    from atta.report.figures.reliability import (
        reliabilities,  # which a classifier need not wait for
    )
    from atta.report.figures.write import picture

    summary = about["summary"]
    titles = {"before": "before: the network", "after": f"after: {summary['method']}"}
    details = [{"method": title, "bins": summary["bins"][when]} for when, title in titles.items()]
    chart: Any = reliabilities(
        [{**detail, **_totals(detail["bins"])} for detail in details], columns=2
    )
    return picture(chart.properties(background="white"), folder / PICTURE)


def _what(about: About) -> str:
    summary, method, shape = (
        about["summary"],
        about["method"],
        " × ".join(map(str, about["image_shape"])),
    )
    views = (
        f"looks at each image through the views {_code(about['policy'])} and mixes"
        if about["policy"]
        else "corrects"
    )
    kept = (
        "**The predicted class is that of the network itself, for every image**: only the confidence changes."
        if about["keeps_class"]
        else "This method does not promise to keep the network's predicted class."
    )
    network, preprocess = _inner(about["model"]), about.get("preprocess")
    name = _code(network.get("name") or network["class"])
    lines = [
        "An image classifier with calibrated confidence: among images that it calls 80 % sure, about 80 % should be right.",
        f"It {views} the network's answers by {_code(method)} ([the paper](https://arxiv.org/abs/2304.05104)). {kept}",
        "",
        f"- images: {shape} (channels × height × width), bytes or floats in [0, 1], not normalised",
        f"- classes: {about['classes']}{_some(about['class_names'])}",
        f"- network: {name}",
    ]
    if preprocess is not None:
        lines.append(
            f"- photographs, before: {Preprocess.of(preprocess)}; `predict_proba` on files does it"
        )
    if summary is not None:
        lines.append(f"- passes of the network an image: {summary['passes']:.3g}")
    if (adapted := about.get("adapted")) is not None and adapted["softness"] != 1:
        lines.append(f"- {Adaptation(**adapted)} All other numbers here are those of before.")
    return "\n".join([*lines, *_all(about["class_names"])])


def _use(about: About, repo_id: str) -> str:
    own = ", model=network" if _inner(about["model"])["kind"] == "other" else ""
    code = [
        "import atta",
        "",
        f'classifier = atta.CalibratedClassifier.from_pretrained("{repo_id}"{own})',
        "probs = classifier(images)             # (n, channels, height, width) → calibrated probabilities (n, classes)",
        'probs = classifier.predict_proba("folder")',
        'classifier.export("classifier.onnx")   # network, views and calibration as one graph',
    ]
    note = (
        ""
        if not own
        else "\n\n`network` is a model of the same class: its code is not in this repository."
    )
    return "```\npip install 'atta[hub]'\n```\n\n```python\n" + "\n".join(code) + "\n```" + note


def _measured(summary: Mapping[str, Any], picture: bool) -> str:
    rows = [
        f"| {metric_name(name)} | {summary['before'][name]:.4f} | {after:.4f} |"
        for name, after in summary["after"].items()
    ]
    changes = summary["class_changes"]
    diagram = (
        f"![Reliability diagrams before and after calibration]({PICTURE})"
        if picture
        else _bins(summary)
    )
    lines = [
        f"Cross-validated on {images_of(summary)}, lower is better. Predicted classes that changed: {changes}.",
        "",
        "| | before | after |",
        "|---|---|---|",
        *rows,
        "",
        diagram,
        "",
        "On images unlike these the numbers are others: measure before you trust.",
    ]
    return "\n".join(lines)


def _bins(summary: Mapping[str, Any]) -> str:
    """The bins of confidence as a table, for want of a picture."""
    lines = [
        "| confidence in | images before | accuracy before | images after | accuracy after |",
        "|---|---|---|---|---|",
    ]
    both = [summary["bins"][when] for when in ("before", "after")]
    for i, (low, high) in enumerate(pairwise(both[0]["edges"])):
        if any(found["counts"][i] for found in both):
            cells = [
                f"{found['counts'][i]} | {'' if found['accuracy'][i] is None else format(found['accuracy'][i], '.3f')}"
                for found in both
            ]
            lines.append(f"| ({low:.3f}, {high:.3f}] | {' | '.join(cells)} |")
    return "\n".join(lines)


def _totals(bins: Mapping[str, Any]) -> dict[str, Any]:
    """What a diagram says of all its images."""
    images = sum(bins["counts"])
    means = {
        name: sum(n * value for n, value in zip(bins["counts"], bins[name], strict=True) if n)
        / images
        for name in ("accuracy", "confidence")
    }
    return {"images": images, **means}


def _inner(model: Mapping[str, Any]) -> Mapping[str, Any]:
    """The network inside the adapters."""
    return _inner(model["model"]) if "model" in model else model


def _some(names: list[str]) -> str:
    if not names:
        return ""
    return f" ({' · '.join(map(_plain, names[:FEW]))}{' · …' if len(names) > FEW else ''})"


def _all(names: list[str]) -> list[str]:
    """Every class with its number, where there are more than a line holds: folded, for those who look for one."""
    if len(names) <= FEW:
        return []
    every = " · ".join(f"{i} {_plain(name)}" for i, name in enumerate(names))
    return [
        "",
        f"<details><summary>All {len(names)} classes</summary>",
        "",
        every,
        "",
        "</details>",
    ]


def _plain(name: str) -> str:
    """Any text as it is, on one line: a page that shows the card must not take it for its own words."""
    return "".join(
        f"&#{ord(letter)};" if letter in MARKUP else letter
        for letter in " ".join(str(name).split())
    )


def _code(name: str) -> str:
    return f"`{' '.join(str(name).replace('`', chr(39)).split())}`"


def images_of(summary: Mapping[str, Any]) -> str:
    """What the numbers of a summary were measured on."""
    return f"{summary['images']} labelled images"
