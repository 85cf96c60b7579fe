"""The card of a shared classifier says what its summary says."""

from pathlib import Path

import pytest

from atta.classifier import hub
from scenarios import made_classifier


def test_every_number_before_and_after_is_in_the_table() -> None:
    about = made_classifier().about()
    text, summary = hub.card_text(about), about["summary"]
    for name in summary["after"]:
        assert f"| {summary['before'][name]:.4f} | {summary['after'][name]:.4f} |" in text
    assert "60 labelled images" in text
    assert "`flip + 2 brightness`" in text
    assert "passes per image: 4" in text


def test_numbers_of_before_a_classifier_was_adapted_are_called_so() -> None:
    told = {
        "images": 500,
        "accuracy": 0.6,
        "low": 0.5,
        "high": 0.7,
        "confidence_before": 0.9,
        "p_value": 0.0,
    }
    for confidence, said in ((0.6, True), (0.9, False)):
        adapted = {**told, "softness": 1.0, "confidence": confidence}
        text = hub.card_text({**made_classifier().about(), "adapted": adapted})
        assert ("- Adapted: of 500 images" in text) is said
        assert ("All other numbers are from before the adaptation." in text) is said


def test_the_picture_is_named_if_it_is_drawn() -> None:
    about = made_classifier().about()
    assert hub.PICTURE in hub.card_text(about, picture=True)
    assert hub.PICTURE not in hub.card_text(about)


def test_a_classifier_without_a_summary_has_a_card_without_numbers() -> None:
    about = made_classifier(summary=False).about()
    assert not hub.drawable(about)
    assert "Brier" not in hub.card_text(about)


def test_the_promise_is_made_only_where_it_is_kept() -> None:
    about = made_classifier().about()
    assert "for every image" in hub.card_text(about)
    assert "for every image" not in hub.card_text({**about, "keeps_class": False})


def test_the_diagrams_are_drawn_on_white(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="vl-convert is not installed")
    from PIL import Image

    with Image.open(hub.draw(made_classifier().about(), tmp_path)) as image:
        assert image.size[0] > image.size[1]
        assert image.convert("RGBA").getpixel((2, 2)) == (255, 255, 255, 255)


def test_no_name_of_a_class_or_a_network_becomes_part_of_the_page() -> None:
    about = made_classifier().about()
    names = [
        "<script>alert(1)</script>",
        "[x](javascript:alert(1))",
        "a\n\n# b",
        *about["class_names"][3:],
    ]
    model = {"kind": "other", "class": "x`<script>alert(2)</script>\n# c"}
    text = hub.card_text({**about, "class_names": names, "model": model, "policy": "`<b>"})
    assert "<script>alert(1)" not in text
    assert "&#60;script&#62;alert(1)" in text
    assert "[x](" not in text
    assert not any(line.startswith(("# b", "# c")) for line in text.splitlines())
    assert "`x'<script>alert(2)</script> # c`" in text  # inside of code, where it is text
    assert "`'<b>`" in text


def test_a_thousand_classes_are_folded_behind_the_first_few() -> None:
    names = [f"n{i:08d} tench, Tinca tinca" for i in range(1000)]
    text = hub.card_text({**made_classifier().about(), "classes": 1000, "class_names": names})
    (line,) = (line for line in text.splitlines() if line.startswith("- classes: "))
    assert line.startswith("- classes: 1000 (n00000000 tench, Tinca tinca · ")
    assert len(line) < 400
    before, folded = text.split("<details><summary>All 1000 classes</summary>")
    assert names[-1] not in before
    inside, after = folded.split("</details>")
    assert f" · 999 {names[-1]}" in inside
    assert "\n\n" in inside[:3], "Markdown begins after an empty line"
    assert "## Use it" in after
    assert "<details>" not in hub.card_text({**made_classifier().about(), "class_names": names[:3]})
