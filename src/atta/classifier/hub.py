"""Classifiers on the Hugging Face hub: a repository is the folder that `save` writes, a model card and its picture.

    classifier.json  calibrator.safetensors  model.safetensors      what `load` reads
    config.json                                                     what the hub counts downloads by, and the class names
    README.md  reliability.png                                      the card (`atta.classifier.card`)

`save_pretrained`, `from_pretrained` and `push_to_hub` are those of huggingface_hub's `ModelHubMixin`. It would pass whatever
of config.json has the name of a parameter of the constructor on to loading, so config.json holds nothing of such a name.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atta._base.errors import require
from atta._base.files import whole_file
from atta.classifier import card
from atta.classifier.archive import ABOUT, SUFFIX, Archived
from atta.results.words import metric_name

TAGS = ["calibration", "uncertainty", "test-time-augmentation", "image-classification", "atta"]

try:
    from huggingface_hub import (
        EvalResult,
        ModelCard,
        ModelCardData,
        ModelHubMixin,
        snapshot_download,
    )
except ImportError as error:
    missing = error

    def _refuse(*args: Any, **kwargs: Any) -> Any:
        """Say what to install."""
        with require("hub", "sharing classifiers on the hub"):
            raise missing

    class ModelHubMixin:  # type: ignore[no-redef]
        """Stands for huggingface_hub's where that is not installed, and says so."""

        save_pretrained = push_to_hub = _refuse
        from_pretrained = classmethod(_refuse)


class OnHub(Archived, ModelHubMixin):
    """What makes a classifier that can be saved and loaded one that can be shared."""

    # Something must be here: otherwise the mixin puts the arguments of the constructor into every instance.
    _hub_mixin_config: dict[str, Any] = {"library_name": "atta"}  # noqa: RUF012

    def push_to_hub(
        self, repo_id: str, *, model_card_kwargs: dict[str, Any] | None = None, **options: Any
    ) -> str:
        """Upload the classifier and its card to a repository of the hub, which is made if there is none."""
        about = {"repo_id": repo_id, **(model_card_kwargs or {})}
        url: str = super().push_to_hub(repo_id, model_card_kwargs=about, **options)
        return url

    def generate_model_card(self, *, repo_id: str = "user/name", **metadata: Any) -> Any:
        """Write the card; `repo_id` is what its code loads, anything else, such as `license`, goes into its front matter."""
        about = self.about()
        text = card.text(about, picture=card.drawable(about), repo_id=repo_id)
        return ModelCard(f"---\n{front_matter(about, repo_id, metadata).to_yaml()}\n---\n\n{text}")

    def _save_pretrained(self, save_directory: Path) -> None:
        about = self.about()
        self.save(save_directory)
        names = about["class_names"] or map(str, range(about["classes"]))
        config = {
            **self._hub_mixin_config,
            "atta_version": about["atta"],
            "id2label": dict(enumerate(names)),
        }
        with whole_file(save_directory / "config.json") as part:
            part.write_text(
                json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
            )
        if card.drawable(about):
            card.draw(about, save_directory)

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        force_download: bool = False,
        model: Any = None,
        views: Any = None,
        **rest: Any,
    ) -> Any:
        device, where = rest.pop("device", None), Path(model_id)
        if not where.is_dir():
            wanted = [ABOUT, f"*{SUFFIX}"]
            where = Path(
                snapshot_download(
                    model_id, force_download=force_download, allow_patterns=wanted, **rest
                )
            )
        return cls.load(where, model, views=views, device=device)


def front_matter(about: Mapping[str, Any], repo_id: str, metadata: Mapping[str, Any]) -> Any:
    """What the hub reads of a card: its tags, and the numbers of its summary."""
    summary, results = about["summary"] or {"after": {}}, []
    for name, value in summary["after"].items():
        results.append(
            EvalResult(
                task_type="image-classification",
                task_name="Image classification",
                dataset_type="validation",
                dataset_name=card.images_of(summary),
                metric_type=name,
                metric_name=f"{metric_name(name)}, cross-validated",
                metric_value=float(f"{value:.6g}"),
            )
        )
    data = {
        "library_name": "atta",
        "pipeline_tag": "image-classification",
        "tags": TAGS,
        **metadata,
    }
    return ModelCardData(
        model_name=repo_id.rpartition("/")[2], eval_results=results or None, **data
    )
