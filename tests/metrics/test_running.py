"""`Calibration`, the torchmetrics metric: batch by batch, and from two processes."""

import json
import os
import warnings
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from torch import distributed

from atta import InputError, evaluate
from scenarios import answers

pytest.importorskip("torchmetrics", reason="torchmetrics is not installed")
from atta.metrics.running import Calibration


def test_batches_add_up_to_what_evaluate_says_and_a_reset_begins_anew() -> None:
    probs, labels = answers(120)
    metric = Calibration(probs.shape[1], metrics=["ece", "brier", "nll", "classwise_ece"])
    expected = evaluate(probs, labels, metrics=metric.new_sums().metrics)
    for _ in range(2):
        for part in range(0, 120, 50):
            metric.update(probs[part : part + 50], labels[part : part + 50])
        found = {name: float(value) for name, value in metric.compute().items()}
        assert found == pytest.approx(expected, abs=1e-12)
        metric.reset()
    with (
        pytest.raises(InputError, match="expected images"),
        warnings.catch_warnings(action="ignore"),
    ):
        metric.compute()


def test_forward_says_what_the_batch_is_worth_and_keeps_the_sum() -> None:
    probs, labels = answers(60)
    metric = Calibration(probs.shape[1], metrics=["brier"])
    for part in (slice(0, 40), slice(40, 60)):
        batch = metric(probs[part], labels[part])
        assert float(batch["brier"]) == pytest.approx(
            evaluate(probs[part], labels[part], metrics=["brier"])["brier"]
        )
    assert float(metric.compute()["brier"]) == pytest.approx(
        evaluate(probs, labels, metrics=["brier"])["brier"]
    )


def test_a_batch_that_is_refused_leaves_the_sums_as_they_were() -> None:
    probs, labels = answers(30)
    metric = Calibration(probs.shape[1], metrics=["ece"])
    metric.update(probs, labels)
    before = metric.compute()
    with pytest.raises(InputError, match="these are not probabilities"):
        metric.update(torch.cat([probs, 9 * probs]), torch.cat([labels, labels]))
    assert metric.compute() == before


def process(folder: str, rank: int, probs: torch.Tensor, labels: torch.Tensor) -> None:
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    metric = Calibration(probs.shape[1])
    mine = slice(0, 70) if rank == 0 else slice(70, None)  # of different sizes
    metric.update(probs[mine], labels[mine])
    found = {name: float(value) for name, value in metric.compute().items()}
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


@pytest.mark.skipif(
    not distributed.is_available() or not hasattr(os, "fork"),
    reason="needs gloo, and processes that fork",
)
def test_two_processes_know_the_metrics_of_all_images(tmp_path: Path) -> None:
    probs, labels = answers(200)
    fork = get_context("fork")  # what is imported stays so: torchmetrics takes its time
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        both = [
            fork.Process(target=process, args=(str(tmp_path), rank, probs, labels))
            for rank in range(2)
        ]
        for one in both:
            one.start()
    for one in both:
        one.join(60)
        assert one.exitcode == 0
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    alone = Calibration(probs.shape[1])
    alone.update(probs, labels)
    assert (
        found[0]
        == found[1]
        == pytest.approx({name: float(value) for name, value in alone.compute().items()}, abs=1e-12)
    )
