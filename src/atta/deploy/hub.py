"""Classifiers on the Hugging Face hub: a repository is the folder that `save` writes, a model card and its picture.

    classifier.json  calibrator.safetensors  model.safetensors      what `load` reads
    config.json                                                     what the hub counts downloads by, and the class names
    README.md  reliability.png                                      the card (`atta.card`)

`save_pretrained`, `from_pretrained` and `push_to_hub` are those of huggingface_hub's `ModelHubMixin`. It would pass whatever
of config.json has the name of a parameter of the constructor on to loading, so config.json holds nothing of such a name.
"""

import json
from abc import abstractmethod
from pathlib import Path
from typing import Any

from atta.deploy import archive as archives
from atta.deploy import card
from atta.errors import InputError
from atta.files import whole_file

MISSING = "sharing classifiers on the hub needs huggingface_hub: pip install 'atta[hub]'"

try:
    from huggingface_hub import ModelCard, ModelHubMixin, snapshot_download
except ImportError:

    class ModelHubMixin:  # type: ignore[no-redef]
        """Stands for huggingface_hub's where that is not installed, and says so."""

        def save_pretrained(self, *args: Any, **kwargs: Any) -> Any:
            """Say what to install."""
            raise InputError(MISSING)

        @classmethod
        def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
            """Say what to install."""
            raise InputError(MISSING)

        def push_to_hub(self, *args: Any, **kwargs: Any) -> Any:
            """Say what to install."""
            raise InputError(MISSING)


class OnHub(ModelHubMixin):
    """What makes a classifier that can be saved and loaded one that can be shared."""

    # Something must be here: otherwise the mixin puts the arguments of the constructor into every instance.
    _hub_mixin_config: dict[str, Any] = {"library_name": "atta"}  # noqa: RUF012

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """Describe the classifier in plain words and numbers, as its file does."""

    @abstractmethod
    def save(self, path: Any) -> Path:
        """Write the classifier."""

    def push_to_hub(self, repo_id: str, *, model_card_kwargs: dict[str, Any] | None = None, **options: Any) -> str:
        """Upload the classifier and its card to a repository of the hub, which is made if there is none."""
        about = {"repo_id": repo_id, **(model_card_kwargs or {})}
        url: str = super().push_to_hub(repo_id, model_card_kwargs=about, **options)
        return url

    def generate_model_card(self, **kwargs: Any) -> Any:
        """Write the card; `repo_id` is what its code loads, anything else, such as `license`, goes into its front matter."""
        return ModelCard(card.text(self.about(), picture=card.drawable(self.about()), **kwargs))

    def _save_pretrained(self, save_directory: Path) -> None:
        about = self.about()
        self.save(save_directory)
        names = about["class_names"] or map(str, range(about["classes"]))
        config = {**self._hub_mixin_config, "atta_version": about["atta"], "id2label": dict(enumerate(names))}
        with whole_file(save_directory / "config.json") as part:
            part.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        if card.drawable(about):
            card.draw(about, save_directory)

    @classmethod
    def _from_pretrained(
        cls, *, model_id: str, force_download: bool = False, model: Any = None, views: Any = None, **rest: Any
    ) -> Any:
        device, where = rest.pop("device", None), Path(model_id)
        if not where.is_dir():
            wanted = [archives.ABOUT, f"*{archives.SUFFIX}"]
            where = Path(snapshot_download(model_id, force_download=force_download, allow_patterns=wanted, **rest))
        return cls.load(where, model, views=views, device=device)  # type: ignore[attr-defined]
