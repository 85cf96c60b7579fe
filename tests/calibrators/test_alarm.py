"""An alarm for a stream: it is rarely raised without a shift, soon after one, and needs constant memory."""

import pytest
import torch

from atta import InputError
from atta.calibrators import TemperatureScaling
from atta.calibrators.alarm import Alarm
from atta.calibrators.shift import Reference, scores
from scenarios import rehearsed


def reference_of(seed: int) -> Reference:
    fit, labels = rehearsed(500, seed=seed)
    return Reference.of(TemperatureScaling().fit(fit, labels), fit, labels)


def stream(seed: int, fade: float = 0.0, temperature: float = 1.0) -> torch.Tensor:
    images, _ = rehearsed(10_000, seed=seed, fade=fade)
    return scores(images.logits, temperature)


def test_streams_that_do_not_shift_raise_no_alarm():
    raised = 0
    for seed in range(10):
        reference = reference_of(seed)
        alarm = Alarm(reference, seed=seed)
        seen = stream(100 + seed, temperature=reference.temperature)
        raised += any(alarm.update(batch) for batch in seen.split(20))
    assert raised == 0


def test_a_shift_raises_the_alarm_also_after_a_long_time_without_one():
    reference = reference_of(0)
    alarm = Alarm(reference)
    for batch in stream(1, temperature=reference.temperature).split(50):
        assert not alarm.update(batch)
    assert alarm.evidence < 1 / alarm.rate
    later = stream(2, fade=0.3, temperature=reference.temperature)[:1000].split(50)
    assert any(alarm.update(batch) for batch in later)
    assert 10_000 < alarm.raised <= 11_000
    before = alarm.raised
    assert alarm.update(later[0])
    assert alarm.raised == before
    assert alarm.images > before


def test_the_same_stream_gives_the_same_evidence():
    one, other = (Alarm(reference_of(3), seed=5) for _ in range(2))
    for batch in stream(4).split(100):
        one.update(batch)
        other.update(batch)
    assert one.evidence == other.evidence


def test_a_rate_is_a_probability():
    with pytest.raises(InputError, match="rate: expected a probability"):
        Alarm(reference_of(0), rate=1.0)
