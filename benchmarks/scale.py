"""What recording photographs takes: JPEG files in, a folder of shards out, of a ResNet-50 at 224 x 224 pixels and 1000 classes.

    python -m benchmarks.scale                        on the CPU, few photographs
    python -m benchmarks.scale --device cuda          thousands, in bfloat16

Beside it stand what nobody can do without: the bare network on tensors that are ready, and reading and decoding the files in as
many threads. docs/scale.md works out from the rates what larger sets cost.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from PIL import Image

import atta
from atta.data.loading import cores
from atta.data.source import as_source
from atta.networks.resnet import resnet50
from benchmarks.collect import BARE
from benchmarks.measured import OURS, Asked, Measured, Steps, alone, interleaved

POLICY = "flip + 2 crop"
PASSES = 4
WHOLE = atta.Preprocess(resize=256, crop=224)
DECODING = "reading and decoding"
QUIET = {"progress": False, "checks": False}


@contextmanager
def photographs(count: int) -> Iterator[Path]:
    """A folder of so many JPEGs of 500 x 375 pixels, which is about the size of ImageNet's."""
    generator = torch.Generator().manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        for i in range(count):
            coarse = torch.rand(1, 3, 24, 32, generator=generator)
            pixels = torch.nn.functional.interpolate(coarse, (375, 500), mode="bicubic")[0].clamp(
                0, 1
            )
            pixels = (pixels + 0.03 * torch.randn(3, 375, 500, generator=generator)).clamp(0, 1)
            photo = Image.fromarray((255 * pixels).byte().permute(1, 2, 0).numpy())
            photo.save(Path(folder) / f"{i:05}.jpg", quality=90)
        yield Path(folder)


def measure(device: torch.device, count: int, size: int, repeats: int) -> list[Measured]:
    """Record all files, decode them alone, and run the network alone, in turns."""
    gpu = device.type == "cuda"
    layout = torch.channels_last if gpu else torch.contiguous_format
    model = resnet50(1000, small_images=False).eval().to(device, memory_format=layout)
    ready = torch.rand(size, 3, 224, 224).to(device).contiguous(memory_format=layout)
    threads = cores()

    def bare() -> None:
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=gpu):
            for _ in range(PASSES * -(-count // size)):
                answer = model(ready)
            answer.cpu()

    with photographs(count) as folder, tempfile.TemporaryDirectory() as records:
        turns = iter(range(repeats))
        how = {
            "batch_size": size,
            "autocast": gpu,
            "channels_last": gpu,
            "workers": threads,
            **QUIET,
        }

        def record() -> None:
            atta.collect(
                model,
                folder,
                policy=POLICY,
                preprocess=WHOLE,
                output=Path(records, str(next(turns))),
                **how,
            )

        def decode() -> None:
            source = as_source(folder, preprocess=WHOLE)
            for _ in source.read(
                [(start, min(start + size, count)) for start in range(0, count, size)], threads
            ):
                pass

        ways: dict[str, Callable[[], object]] = {OURS: record, BARE: bare, DECODING: decode}
        times = interleaved(ways, repeats)
    about = {"images": count, "passes": PASSES, "batch": size, "threads": threads}
    what = f"ResNet-50 at 224 pixels{', bf16' if gpu else ''}"
    return [
        Measured(what, OURS, {"seconds": times[OURS], **about}),
        *(Measured(what, who, {"seconds": times[who]}, "limit") for who in (BARE, DECODING)),
    ]


def steps(asked: Asked) -> Steps:
    """One network; as many photographs as take some seconds."""
    device = torch.device(asked.device)
    count, size = (
        (asked.few(4096, 64), asked.few(512, 32))
        if device.type == "cuda"
        else (asked.few(32, 4), asked.few(16, 2))
    )
    return {"photographs": partial(measure, device, count, size, asked.few(3, 1))}


if __name__ == "__main__":
    alone(steps, __doc__)
