"""Share classifiers on the Hugging Face hub: the folder that `save` writes, and a model card.

    classifier.json  calibrator.safetensors  model.safetensors      read by `load`
    config.json                                                     class names; counts downloads
    README.md  reliability.png                                      the card and its picture

`save_pretrained`, `from_pretrained` and `push_to_hub` come from huggingface_hub's `ModelHubMixin`.
The mixin passes every value of config.json with the name of a constructor parameter on to loading,
so that config.json has no such names.

The numbers of the card are those of the summary: cross-validated, on images that neither the
training of the network nor the fit saw. The picture needs `atta[report]`.
"""

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from atta._base.errors import require
from atta._base.files import whole_file
from atta.calibrators.shift import Adaptation
from atta.classifier.archive import ABOUT, SUFFIX, Archived
from atta.data.preprocess import Preprocess
from atta.networks.description import inside
from atta.results.words import metric_name

try:
    from huggingface_hub import (
        EvalResult,
        ModelCard,
        ModelCardData,
        ModelHubMixin,
        snapshot_download,
    )
except ImportError:

    def _refuse(*args: Any, **kwargs: Any) -> Any:
        """Say what to install."""
        with require("hub", "sharing classifiers on the hub"):
            import huggingface_hub  # noqa: F401

    class ModelHubMixin:  # type: ignore[no-redef]
        """Replaces the class of huggingface_hub where that is not installed."""

        save_pretrained = push_to_hub = _refuse
        from_pretrained = classmethod(_refuse)


About = Mapping[str, Any]
"""The result of `CalibratedClassifier.about`, which classifier.json holds."""
TAGS = ["calibration", "uncertainty", "test-time-augmentation", "image-classification", "atta"]
PICTURE = "reliability.png"
FEW = 10  # classes that are named in a line
MARKUP = str.maketrans({mark: f"&#{ord(mark)};" for mark in "<>&`*[]!|#~\\"})
BIBTEX = """\
@article{conde2023approaching,
  title   = {Approaching Test Time Augmentation in the Context of Uncertainty Calibration
             for Deep Neural Networks},
  author  = {Conde, Pedro and Barros, Tiago and Lopes, Rui L. and Premebida, Cristiano
             and Nunes, Urbano J.},
  journal = {arXiv preprint arXiv:2304.05104},
  year    = {2023}
}"""
CODE = """\
```
pip install 'atta[hub]'
```

```python
import atta

classifier = atta.CalibratedClassifier.from_pretrained("{repo_id}"{model})
probs = classifier(images)              # (n, channels, height, width) → (n, classes)
probs = classifier.predict_proba("folder")
classifier.export("classifier.onnx")    # network, views and calibration as one graph
```"""


class OnHub(Archived, ModelHubMixin):
    """A classifier that can be shared on the hub."""

    # The mixin stores the constructor's arguments in every instance if this is empty.
    _hub_mixin_config: dict[str, Any] = {"library_name": "atta"}  # noqa: RUF012

    def push_to_hub(
        self, repo_id: str, *, model_card_kwargs: dict[str, Any] | None = None, **options: Any
    ) -> str:
        """Upload the classifier and its model card to the Hugging Face hub.

        Args:
            repo_id: The repository, "user/name", which is created if it does not exist.
            model_card_kwargs: Values for the front matter of the card, such as `license`.
            options: Options of `huggingface_hub.ModelHubMixin.push_to_hub`: `private`, `token`, ...

        Returns:
            The address of the commit.

        Raises:
            MissingExtra: huggingface_hub is not installed: `pip install 'atta[hub]'`.

        >>> classifier.push_to_hub("user/name", private=True)  # doctest: +SKIP
        """
        about = {"repo_id": repo_id, **(model_card_kwargs or {})}
        url: str = super().push_to_hub(repo_id, model_card_kwargs=about, **options)
        return url

    def generate_model_card(self, *, repo_id: str = "user/name", **metadata: Any) -> Any:
        """Write the model card.

        Args:
            repo_id: The repository that the code on the card loads.
            metadata: Values for its front matter, such as `license`.

        Returns:
            A `huggingface_hub.ModelCard`.
        """
        about = self.about()
        summary = about["summary"]
        results = [
            EvalResult(
                task_type="image-classification",
                task_name="Image classification",
                dataset_type="validation",
                dataset_name=f"{summary['images']} labelled images",
                metric_type=name,
                metric_name=f"{metric_name(name)}, cross-validated",
                metric_value=float(f"{value:.6g}"),
            )
            for name, value in (summary["after"].items() if summary else ())
        ]
        front_matter = ModelCardData(
            model_name=repo_id.rpartition("/")[2],
            eval_results=results or None,
            library_name="atta",
            **{"pipeline_tag": "image-classification", "tags": TAGS, **metadata},
        )
        text = card_text(about, picture=drawable(about), repo_id=repo_id)
        return ModelCard(f"---\n{front_matter.to_yaml()}\n---\n\n{text}")

    def _save_pretrained(self, save_directory: Path) -> None:
        about = self.about()
        self.save(save_directory)
        config = {
            **self._hub_mixin_config,
            "atta_version": about["atta"],
            "id2label": dict(enumerate(about["class_names"] or map(str, range(about["classes"])))),
        }
        text = json.dumps(config, indent=2, ensure_ascii=False)
        with whole_file(save_directory / "config.json") as part:
            part.write_text(f"{text}\n", encoding="utf-8")
        if drawable(about):
            draw(about, save_directory)

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        force_download: bool = False,
        model: Any = None,
        views: Any = None,
        device: Any = None,
        **rest: Any,
    ) -> Any:
        folder = Path(model_id)
        if not folder.is_dir():
            rest |= {"force_download": force_download, "allow_patterns": [ABOUT, f"*{SUFFIX}"]}
            folder = Path(snapshot_download(model_id, **rest))
        return cls.load(folder, model, views=views, device=device)


# ---- the card


def card_text(about: About, *, picture: bool = False, repo_id: str = "user/name") -> str:
    """Write the card without its front matter."""
    other = inside(about["model"])["kind"] == "other"
    code = CODE.format(repo_id=repo_id, model=", model=network" if other else "")
    if other:
        code += "\n\n`network` is a model of the same class: its code is not in this repository."
    parts = [
        f"# {repo_id.rpartition('/')[2]}\n\n{_introduction(about)}",
        f"## Use it\n\n{code}",
        *([_measured(about["summary"], picture)] if about["summary"] else []),
        f"## Citation\n\n```bibtex\n{BIBTEX}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def drawable(about: About) -> bool:
    """Whether the summary has numbers to draw, and the libraries to draw them are installed."""
    return bool(about["summary"] and find_spec("altair") and find_spec("vl_convert"))


def draw(about: About, folder: Path) -> Path:
    """Draw the reliability diagrams before and after calibration, on white for dark pages."""
    # Loading a classifier must not import charts.
    from atta.report.figures.detail import side_by_side
    from atta.report.figures.theme import picture

    summary, details = about["summary"], {}
    titles = {"before": "before: the network", "after": f"after: {summary['method']}"}
    for when, title in titles.items():
        bins = summary["bins"][when]
        counts = np.array(bins["counts"])
        means = {
            name: float(np.nansum(counts * np.array(bins[name], float)) / counts.sum())
            for name in ("accuracy", "confidence")
        }
        details[title] = {"bins": bins, "images": int(counts.sum()), **means}
    chart: Any = side_by_side(details, columns=2)
    return picture(chart.properties(background="white"), folder / PICTURE)


def _introduction(about: About) -> str:
    """What the classifier is, and what it takes and returns."""
    action = "corrects"
    if about["policy"]:
        action = f"looks at each image through the views {_code(about['policy'])} and mixes"
    kept = (
        "**The predicted class is that of the network, for every image**: only confidence changes."
        if about["keeps_class"]
        else "This method may change the predicted class of the network."
    )
    network, names = inside(about["model"]), [*map(_plain, about["class_names"])]
    more = " · …" if len(names) > FEW else ""
    some = f" ({' · '.join(names[:FEW])}{more})" if names else ""
    paper = "[the paper](https://arxiv.org/abs/2304.05104)"
    lines = [
        "An image classifier with calibrated confidence: of the images with a confidence of 80 %, "
        "about 80 % should be right.",
        f"It {action} the network's answers by {_code(about['method'])} ({paper}). {kept}",
        "",
        f"- images: {' × '.join(map(str, about['image_shape']))} (channels × height × width), "
        "bytes or floats in [0, 1], not normalised",
        f"- classes: {about['classes']}{some}",
        f"- network: {_code(network.get('name') or network['class'])}",
    ]
    if preprocess := about.get("preprocess"):
        lines.append(f"- preprocessing: {Preprocess.of(preprocess)}; `predict_proba` does it")
    if summary := about["summary"]:
        lines.append(f"- passes per image: {summary['passes']:.3g}")
    if about.get("adapted") and (adapted := Adaptation(**about["adapted"])).changed:
        lines.append(f"- {adapted} All other numbers are from before the adaptation.")
    if len(names) > FEW:
        every = " · ".join(f"{i} {name}" for i, name in enumerate(names))
        lines.append(
            f"\n<details><summary>All {len(names)} classes</summary>\n\n{every}\n\n</details>"
        )
    return "\n".join(lines)


def _measured(summary: Mapping[str, Any], picture: bool) -> str:
    """The metrics before and after calibration, with a picture."""
    rows = "\n".join(
        f"| {metric_name(name)} | {summary['before'][name]:.4f} | {after:.4f} |"
        for name, after in summary["after"].items()
    )
    image = f"\n\n![Reliability diagrams before and after calibration]({PICTURE})"
    return f"""\
## Calibration

Cross-validated on {summary["images"]} labelled images, lower is better. \
Changed predicted classes: {summary["class_changes"]}.

| | before | after |
|---|---|---|
{rows}{image if picture else ""}

The numbers may differ on other images: measure on your own."""


def _plain(name: str) -> str:
    """Any text on one line, with the characters of HTML and Markdown escaped."""
    return " ".join(name.split()).translate(MARKUP)


def _code(name: str) -> str:
    return f"`{' '.join(str(name).replace('`', chr(39)).split())}`"
