"""Segmentation on CamVid: records, changed pixels, drift and cost of three networks, and their tables.

python -m benchmarks.train_segmentation camvid.zip unet,deeplab,former --out WEIGHTS     on a GPU: three networks
python -m benchmarks.segmentation collect camvid.zip WEIGHTS --out FOLDER                on a GPU: records of each network
python -m benchmarks.segmentation whole camvid.zip WEIGHTS --out FOLDER                  on a GPU: every test pixel
python -m benchmarks.segmentation choose FOLDER                                          anywhere: policies on validation images
python -m benchmarks.segmentation tables FOLDER                                          anywhere: docs/segmentation.md's numbers
python -m benchmarks.segmentation drift FOLDER                                           anywhere: estimates, and adapting
python -m benchmarks.segmentation thin FOLDER --out records                              the records of the repository
python -m benchmarks.segmentation picture camvid.zip WEIGHTS --out docs/segmentation.png   maps of a test image
python -m benchmarks.segmentation cost --out FILE.json                                   memory and time at 2048 x 1024
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import atta
from atta.calibrators.hedged import hedge
from atta.calibrators.shift import Reference
from atta.classifier.archive import Kept
from atta.classifier.label_maps import palette
from atta.data.corruptions import CORRUPTIONS, families_of, rehearsed
from atta.data.segmentation import scenes
from atta.data.views import Policy
from atta.metrics.scores import confusion, error_auroc, miou
from atta.networks.adapters import as_dense
from atta.run.collect import STREAM_SEVERITIES
from atta.run.pixels import PixelRun
from atta.run.runner import Execution, as_pixels
from benchmarks.train_segmentation import CLASSES, IGNORED, NETWORKS, DeepLab, load, read

BEGAN = time.perf_counter()
SIZES = (50, 75, 125, 150, 175, 200)
EVERY = " + ".join(
    ["flip", *(f"{mirror}scale-{size}" for mirror in ("", "flip-") for size in SIZES), "brightness"]
)
METHOD = atta.CATTA()
CHOSEN = "scale-75 + flip-scale-75 + scale-200"
LARGE = "flip + scale-75 + scale-125"
WHOLE = (
    LARGE,
    "flip-scale-75 + scale-125 + flip-scale-150",
    "flip-scale-75 + scale-150 + flip-scale-150",
    CHOSEN,
)
"""Policies whose answers to every test pixel are compared with the network's."""
SHIFTS = ("gaussian-noise-1", "contrast-3", "fog-1", "motion-blur-1")
SHIFTED = CHOSEN
GROUP = 30
"""Test images that a segmenter is adapted to at once, besides all of them."""


# ---- collect: needs the photographs


def shifted(pixels: Tensor, name: str) -> Tensor:
    """Corrupt photographs, one by one."""
    view = CORRUPTIONS[name]
    found = []
    for row, one in enumerate(pixels):
        image = one[None].float() / 255
        u = atta.data.draws.random_numbers(name, view.count(image), torch.tensor([row]))
        shown = view(image, u.to(image.device)) if view.random else view(image)
        found.append((shown * 255).round().to(torch.uint8).cpu())
    return torch.cat(found)


@torch.no_grad()
def whole(segmenter: atta.CalibratedSegmenter, x: Tensor, y: Tensor, device: str) -> dict[str, Any]:
    """Every pixel of whole images: changed labels, Brier score and NLL of network and segmenter."""
    changed = again = 0
    counts = torch.zeros(CLASSES, CLASSES, dtype=torch.float64)
    totals = torch.zeros(5, dtype=torch.float64, device=device)
    for image, mask in zip(x, y, strict=True):
        one = as_pixels(image[None].to(device), torch.float32)
        logits, probs = (torch.cat(parts) for parts in zip(*segmenter._tiles(one), strict=True))
        labels = logits.argmax(1)
        changed += int((probs.argmax(1) != labels).sum())
        again += int((segmenter.model(one).argmax(1).flatten() != labels).sum())  # alone
        truth = mask.flatten().to(device).long()
        known = truth != IGNORED
        truth = truth[known]
        part = [known.sum()]
        for p in (logits.softmax(1)[known], probs[known]):
            right = (p.argmax(1) == truth).to(p)
            part += [
                (p.amax(1) - right).square().sum(),
                -p.gather(1, truth[:, None]).clamp_min(1e-38).log().sum(),
            ]
        counts += confusion(labels[known], truth, CLASSES).cpu()
        totals += torch.stack([each.double() for each in part])
    names = ("brier_before", "nll_before", "brier", "nll")
    means = dict(zip(names, (totals[1:] / totals[0]).tolist(), strict=True))
    accuracy = float(counts.diag().sum() / counts.sum())
    said = {"pixels": y.numel(), "changed": changed, "other in another pass": again}
    return {**said, "accuracy": accuracy, "miou": miou(counts), **means}


def apart(work: Callable[[argparse.Namespace, str, nn.Module], None]) -> Callable[..., None]:
    """Do the work for each network in a process of its own, at the same time."""

    def run(args: argparse.Namespace) -> None:
        names = args.names.split(",")
        if len(names) == 1:
            Path(args.out).mkdir(parents=True, exist_ok=True)
            work(args, names[0], load(names[0], args.weights).to(args.device))
            return
        command = [sys.executable, "-m", "benchmarks.segmentation", *sys.argv[1:], "--names"]
        running = [subprocess.Popen([*command, name]) for name in names]
        if worst := max(abs(process.wait()) for process in running):
            sys.exit(worst)

    return run


def images_of(args: argparse.Namespace, split: str) -> list[Tensor]:
    """Photographs and masks of a split."""
    return [each[:: args.every] for each in read(args.data, split)[1:]]


def tell(*what: object) -> None:
    """Print, with the time since the start."""
    print(f"{time.perf_counter() - BEGAN:.0f}s", *what, flush=True)


@apart
def collect(args: argparse.Namespace, name: str, network: nn.Module) -> None:
    """Write NAME_SPLIT.safetensors: random pixels of each image, in every view."""
    how = Execution(device=args.device, progress=False)

    def sampled(split: str, x: Tensor, y: Tensor, policy: str, rehearsals: Policy) -> None:
        run = PixelRun(as_dense(network), scenes(x, y), how, ignored=IGNORED)
        found = run.record(Policy.parse(policy), rehearsals, {"dataset": "camvid"}).record
        found.save(Path(args.out) / f"{name}_{split}.safetensors", half=True)
        tell(name, split)

    for split in args.splits.split(","):
        if split == "shifts":
            x, y = (each[::3] for each in images_of(args, "test"))
            for shift in SHIFTS:
                sampled(shift, shifted(x.to(args.device), shift), y, SHIFTED, Policy(()))
        else:
            more = " + diagonal-shift + contrast" if split == "val" else ""
            rehearsals = rehearsed(STREAM_SEVERITIES if split == "val" else ())
            sampled(split, *images_of(args, split), EVERY + more, rehearsals)


@apart
def everywhere(args: argparse.Namespace, name: str, network: nn.Module) -> None:
    """Changed pixels and scores on all test pixels, fitted on the record of `collect`."""
    val = atta.Record.load(Path(args.records or args.out) / f"{name}_val.safetensors")
    x, y = images_of(args, "test")
    found = {}
    for policy in WHOLE:
        calibrator = atta.CATTA().fit(viewed(val, policy), val.require_labels())
        segmenter = atta.CalibratedSegmenter(network, calibrator, policy, image_shape=(3, 360, 480))
        found[policy] = whole(segmenter.to(args.device), x, y, args.device)
        tell(name, policy, found[policy])
        (Path(args.out) / f"{name}_whole.json").write_text(json.dumps(found, indent=1) + "\n")


# ---- tables: needs the records


METHODS: dict[str, tuple[atta.Method, str]] = {
    "temperature": (atta.TemperatureScaling(), ""),
    "**C-ATTA**": (METHOD, CHOSEN),
    "V-ATTA, the same views": (atta.VATTA(), CHOSEN),
    "mean of the same + temperature": (atta.MeanTTATemperature(), CHOSEN),
    f"C-ATTA, {LARGE}": (METHOD, LARGE),
    "C-ATTA, scale-200": (METHOD, "scale-200"),
    "C-ATTA, flip": (METHOD, "flip"),
}
TEMPERATURE, OURS, _, MEAN, *_ = METHODS
CLOSE = ("brier", "nll")


def opened(folder: str, name: str, split: str) -> atta.Record:
    """The record of a network."""
    return atta.Record.load(Path(folder) / f"{name}_{split}.safetensors")


def viewed(record: atta.Record, policy: str) -> atta.Predictions:
    """The predictions with the views of a policy."""
    return record.predictions.select(Policy.parse(policy).kinds if policy else ())


def left_out(method: atta.Method, record: atta.Record, policy: str) -> tuple[Tensor, Tensor]:
    """Answers to each of five scenes, by a calibrator fitted on the others.

    A scene is a fifth of the consecutive frames: what is left out has no neighbour elsewhere.
    """
    predictions, labels = viewed(record, policy), record.require_labels()
    probs, sure = torch.empty(len(predictions), predictions.classes), torch.empty(len(predictions))
    for images in predictions.images.unique().tensor_split(5):
        part = torch.isin(predictions.images, images)
        fitted = method.fit(predictions[(~part).nonzero()[:, 0]], labels[~part])
        rows = predictions[part.nonzero()[:, 0]]
        probs[part], sure[part] = fitted(rows).float(), fitted.confidence(rows).float()
    return probs, sure


def choose(args: argparse.Namespace) -> None:
    """Compare policies on the validation images, left out by scene; look at no test image."""
    vals = {name: opened(args.data, name, "val") for name in args.names.split(",")}
    vals = {name: val[:: args.every] for name, val in vals.items()}
    views = list(next(iter(vals.values())).predictions.kinds)
    found: dict[str, dict[str, list[float]]] = {}

    def gain(policy: str, method: atta.Method = METHOD) -> float:
        """How far the mean Brier score and NLL are below those of temperature scaling."""
        if policy not in found:
            parts = {}
            for name, val in vals.items():
                probs, _ = left_out(method, val, policy)
                got = atta.evaluate(probs, val.require_labels(), metrics=CLOSE)
                parts[name] = [got[each] / base[name][each] - 1 for each in CLOSE]
            found[policy] = parts
        return statistics.mean(part for parts in found[policy].values() for part in parts)

    base = {
        name: atta.evaluate(
            left_out(atta.TemperatureScaling(), val, "")[0], val.require_labels(), metrics=CLOSE
        )
        for name, val in vals.items()
    }
    best = [""]
    for count in range(1, args.most + 1):
        wider = {
            " + ".join(sorted({*policy.split(" + "), view} - {""}, key=views.index))
            for policy in best
            for view in views
            if view not in policy.split(" + ")
        }
        order = sorted(wider, key=gain)
        best = order[: args.beam]
        for policy in order[:8]:
            parts = " ".join(
                f"{name} {brier:+.1%} {nll:+.1%}" for name, (brier, nll) in found[policy].items()
            )
            tell(count + 1, "passes", f"{gain(policy):+.2%}", policy, "|", parts)
    if args.out:
        Path(args.out).write_text(json.dumps(found, indent=1) + "\n")


def compared(record: atta.Record, answers: dict[str, tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """Scores of all methods, and paired differences by image to temperature and to the mean."""
    labels, images = record.require_labels(), record.predictions.images
    own = record.predictions.logits.argmax(1)
    found: dict[str, Any] = {}
    for name, (probs, sure) in answers.items():
        found[name] = atta.evaluate(
            probs, labels, metrics=(*CLOSE, "accuracy", "ece", "classwise_ece")
        )
        found[name]["error_auroc"] = error_auroc(sure, own == labels)
        found[name]["changed"] = int((probs.argmax(1) != own).sum())
        for other in {TEMPERATURE, MEAN} & answers.keys() - {name}:
            found[name][f"to {other}"] = atta.paired(
                probs, answers[other][0], labels, metrics=CLOSE, images=images
            )
    return found


def few(val: atta.Record, test: atta.Record, images: int = 10, draws: int = 20) -> dict[str, float]:
    """The share of the gain over temperature scaling that so many labelled images give."""
    method, policy = METHODS[OURS]
    labels, seen = test.require_labels(), viewed(test, policy)
    numbers = val.predictions.images.unique()

    def measured(rows: Tensor) -> list[float]:
        own, y = viewed(val, policy)[rows], val.require_labels()[rows]
        return list(atta.evaluate(method.fit(own, y)(seen), labels, metrics=CLOSE).values())

    full = measured(torch.arange(len(val)))
    plain = atta.TemperatureScaling().fit(viewed(val, ""), val.require_labels())
    base = atta.evaluate(plain(viewed(test, "")), labels, metrics=CLOSE)
    shares = []
    for draw in range(draws):
        generator = torch.Generator().manual_seed(draw)
        chosen = numbers[torch.randperm(len(numbers), generator=generator)[:images]]
        part = measured(torch.isin(val.predictions.images, chosen).nonzero()[:, 0])
        shares.append(
            [(b - p) / (b - f) for b, p, f in zip(base.values(), part, full, strict=True)]
        )
    both = dict(zip(CLOSE, zip(*shares, strict=True), strict=True))
    return {
        **{name: statistics.mean(each) for name, each in both.items()},
        **{f"{name}, worst": min(each) for name, each in both.items()},
    }


class Recorded(atta.CalibratedSegmenter):
    """A segmenter that is given recorded pixels for images."""

    def _answers(self, images: Any, **how: Any) -> atta.Predictions:
        return images  # type: ignore[no-any-return]


def drift(args: argparse.Namespace) -> None:
    """Print what a segmenter says of test images without their masks, and what adapting changes."""
    for name in args.names.split(","):
        val, test = (opened(args.data, name, split) for split in ("val", "test"))
        seen, labels = viewed(val, CHOSEN), val.require_labels()
        calibrator = METHOD.fit(seen, labels)
        segmenter = Recorded(
            nn.Conv2d(3, CLASSES, 1),
            calibrator,
            CHOSEN,
            image_shape=(3, 360, 480),
            reference=Reference.of(
                calibrator, seen, labels, families_of(seen.rehearsals, seen.images, 0)
            ),
            kept=Kept(hedged=hedge(calibrator, seen, labels)),
        )
        numbers = test.predictions.images.unique()
        for images in (*numbers.split(GROUP), numbers):
            rows = torch.isin(test.predictions.images, images).nonzero()[:, 0]
            part, own = viewed(test, CHOSEN)[rows], test.require_labels()[rows]
            found, now = segmenter.drift(part), segmenter.adapt(part)
            before, after = (
                atta.evaluate(one.calibrator(part), own, metrics=("accuracy", *CLOSE))
                for one in (segmenter, now)
            )
            told = f"{found.accuracy:.1%} ({found.low:.1%} to {found.high:.1%})"
            print(
                f"{name}, {len(images)} images from {int(images[0])} on: p {found.p_value:.0e}, "
                f"estimated {told}, true {before['accuracy']:.1%}; adapted: "
                + ", ".join(f"{k} {before[k]:.4f} to {after[k]:.4f}" for k in CLOSE),
                flush=True,
            )


def thin(args: argparse.Namespace) -> None:
    """Write every fourth pixel of the records, with the chosen views, for the repository."""
    kinds = Policy.parse(CHOSEN).kinds
    for name in args.names.split(","):
        for split in ("val", "test"):
            record = opened(args.data, name, split)[::4]
            seen = record.predictions.select(kinds, rehearsals=False)
            about = {
                "pixels": "50",
                "policy": CHOSEN,
                "passes": str(1 + len(kinds)),
                "network": name,
                "split": split,
            }
            kept = atta.Record(seen, record.labels, {**record.origin, **about})
            print(kept.save(Path(args.out) / f"camvid_{name}_{split}.safetensors", half=True))


def tables(args: argparse.Namespace) -> None:
    """Print the tables of the page."""
    every: dict[str, Any] = {}
    for name in args.names.split(","):
        val = opened(args.data, name, "val")
        every[name] = {
            "left out": compared(val, {n: left_out(m, val, p) for n, (m, p) in METHODS.items()})
        }
        fitted = {
            n: (m.fit(viewed(val, p), val.require_labels()), p) for n, (m, p) in METHODS.items()
        }
        there = [one for one in SHIFTS if (Path(args.data) / f"{name}_{one}.safetensors").exists()]
        for split in ("test", *there):
            record = opened(args.data, name, split)
            have = set(record.predictions.kinds)
            answers = {}
            for method, (one, policy) in fitted.items():
                if not policy or have >= set(Policy.parse(policy).kinds):
                    seen = viewed(record, policy)
                    answers[method] = (one(seen), one.confidence(seen))
            every[name][split] = compared(record, answers)
        every[name]["ten images"] = few(val, opened(args.data, name, "test"))
        print(shown(name, every[name]), flush=True)
    if args.out:
        Path(args.out).write_text(json.dumps(every, indent=1) + "\n")


def shown(name: str, found: dict[str, Any]) -> str:
    """Markdown: a line for each method, for each set of images."""
    lines = []
    for split, methods in found.items():
        if split == "ten images":
            lines += ["", f"{name}, ten images: {methods}"]
            continue
        lines += ["", f"{name}, {split}: temperature {methods[TEMPERATURE]}", ""]
        for method, row in methods.items():
            policy = METHODS[method][1]
            cells = [str(Policy.parse(policy).passes if policy else 1)]
            for k in CLOSE if method != TEMPERATURE else ():
                base, (low, high) = methods[TEMPERATURE][k], row[f"to {TEMPERATURE}"][k]
                shares = [f"{x:+.1%}" for x in (row[k] / base - 1, low / base, high / base)]
                cells.append("{} ({} to {})".format(*shares).replace("%", " %").replace("-", "−"))
            cells += [f"{row['accuracy']:.1%}", str(row["changed"])]
            lines.append(f"| {method} | {' | '.join(cells)} |")
        if f"to {MEAN}" in methods[OURS]:
            lines += ["", f"{OURS} minus {MEAN}: {methods[OURS][f'to {MEAN}']}"]
    return "\n".join(lines)


def picture(args: argparse.Namespace) -> None:
    """Draw the maps of a test image; the photograph is not ours to show."""
    from PIL import Image, ImageDraw

    name = args.names.split(",")[0]
    val = atta.find_record(f"camvid_{name}_val")
    calibrator = atta.CATTA().fit(val.predictions, val.labels)
    network = load(name, args.weights)
    segmenter = atta.CalibratedSegmenter(network, calibrator, CHOSEN, image_shape=(3, 360, 480))
    _, x, y = read(args.data, "test")
    maps, truth = segmenter.answered_map(x[args.image]), y[args.image].long()
    colours = torch.from_numpy(palette(CLASSES + 1))
    wrong = (maps.labels != truth) & (truth != IGNORED)

    def grey(sure: Tensor) -> Tensor:
        return (sure * 255).round().byte()[..., None].expand(-1, -1, 3)

    panels = {
        "truth": colours[truth],
        "labels": colours[maps.labels],
        "wrong pixels (black)": grey((~wrong).float()),
        "confidence before": grey(maps.before),
        "confidence after": grey(maps.confidence),
    }
    width, height = 320, 240
    whole = Image.new("RGB", (3 * (width + 8) - 8, 2 * (height + 24)), "white")
    draw = ImageDraw.Draw(whole)
    for i, (title, panel) in enumerate(panels.items()):
        left, top = (i % 3) * (width + 8), (i // 3) * (height + 24)
        draw.text((left, top + 4), title, fill="black", font_size=14)
        shown = Image.fromarray(panel.contiguous().numpy()).resize((width, height))
        whole.paste(shown, (left, top + 24))
    whole.quantize(128).save(args.out, optimize=True)


# ---- cost: random weights


def resident() -> float:
    """The most memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def timed(work: Callable[[], Any], device: str, turns: int) -> float:
    """The median time of a call."""
    found = []
    for _ in range(turns + 1):
        began = time.perf_counter()
        work()
        if device != "cpu":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return statistics.median(found[1:] or found)


def cost(args: argparse.Namespace) -> None:
    """Memory and time of one image of 2048 x 1024 with 19 classes; each way in a process of its own."""
    if args.way:
        print(json.dumps(_cost(args.way, args.device, args.side, args.turns)))
        return
    found = {}
    for way in ("bare", "segmenter", "segmenter, maps", "mean of all views", "ttach"):
        command = [sys.executable, "-m", "benchmarks.segmentation", "cost", "--way", way]
        options = ["--device", args.device, "--side", str(args.side), "--turns", str(args.turns)]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        found[way] = json.loads(done.stdout) if done.returncode == 0 else done.stderr[-300:]
        print(way, found[way], flush=True)
    if args.out:
        Path(args.out).write_text(json.dumps(found, indent=1) + "\n")


@torch.no_grad()
def _cost(way: str, device: str, side: int, turns: int) -> dict[str, float]:
    """One way: the network alone, the segmenter, or the mean of the same views, all kept or by ttach."""
    torch.manual_seed(0)
    network = DeepLab(19).eval().to(device)
    dense = as_dense(network)
    image = torch.rand(1, 3, side, 2 * side, device=device)
    views = Policy.parse(LARGE)
    calibrator = atta.CATTA().fit(
        atta.Predictions(torch.randn(99, 19), {k: torch.randn(99, 1, 19) for k in views.kinds}),
        torch.randint(19, (99,)),
    )
    segmenter = atta.CalibratedSegmenter(dense, calibrator, views, image_shape=(3, 64, 64)).to(
        device
    )

    def mean() -> Tensor:
        from atta.run.pixels import passes

        return torch.stack([one.logits for one in passes(dense, image, views)]).mean(0).softmax(1)

    def merged() -> Tensor:
        import ttach

        plain = lambda x: network(x)["out"]  # noqa: E731
        module = nn.Module()
        module.forward = plain  # type: ignore[method-assign]
        turned = ttach.Compose(
            [ttach.HorizontalFlip(), ttach.Scale([1, 0.75, 1.25], interpolation="bilinear")]
        )
        return ttach.SegmentationTTAWrapper(module, turned, merge_mode="mean")(image)

    ways: dict[str, Callable[[], Any]] = {
        "bare": lambda: dense(image),
        "segmenter": lambda: segmenter(image),
        "segmenter, maps": lambda: segmenter.answered_map(image[0]),
        "mean of all views": mean,
        "ttach": merged,
    }
    before = resident()
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    seconds = timed(ways[way], device, turns)
    mb = resident() if device == "cpu" else torch.cuda.max_memory_allocated() / 2**20
    return {"seconds": seconds, "mb": mb, "mb before": before if device == "cpu" else 0.0}


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("data", nargs="?", help="the data set, or the folder of the records")
    parser.add_argument("weights", nargs="?", help="the folder of the networks")
    parser.add_argument("--out")
    parser.add_argument("--records", help="the folder of the records, if it is not that of --out")
    parser.add_argument("--names", default=",".join(NETWORKS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--splits", default="val,test,shifts", help="what `collect` records")
    parser.add_argument("--every", type=int, default=1, help="take every n-th image: a trial")
    parser.add_argument("--most", type=int, default=5, help="the views of a policy of `choose`")
    parser.add_argument("--beam", type=int, default=12, help="policies that `choose` widens")
    parser.add_argument("--image", type=int, default=100, help="the image of `picture`")
    parser.add_argument("--way", help="one way of `cost`")
    parser.add_argument("--side", type=int, default=1024, help="the height of the image of `cost`")
    parser.add_argument("--turns", type=int, default=3, help="how often `cost` measures")
    return parser.parse_args(words)


COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "collect": collect,
    "whole": everywhere,
    "drift": drift,
    "choose": choose,
    "tables": tables,
    "thin": thin,
    "picture": picture,
    "cost": cost,
}

if __name__ == "__main__":
    arguments = parsed()
    COMMANDS[arguments.command](arguments)
