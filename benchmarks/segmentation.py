"""Segmentation on CamVid: records, changed pixels, drift and cost of three networks, and their tables.

python -m benchmarks.train_segmentation camvid.zip unet,deeplab,former --out WEIGHTS     on a GPU: three networks
python -m benchmarks.segmentation collect camvid.zip WEIGHTS --out FOLDER                on a GPU: NAME.zip of each network
python -m benchmarks.segmentation whole camvid.zip WEIGHTS --out FILE.json               on a GPU: every test pixel
python -m benchmarks.segmentation tables FOLDER                                          anywhere: docs/segmentation.md's numbers
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
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import atta
from atta.classifier.label_maps import palette
from atta.data.corruptions import CORRUPTIONS
from atta.data.masks import scenes
from atta.data.views import Policy
from atta.metrics.maps import confusion, error_auroc, miou
from atta.networks.dense import as_dense
from atta.run.pixels import PixelRun
from atta.run.runner import Execution, as_pixels
from benchmarks.train_segmentation import CLASSES, IGNORED, NETWORKS, DeepLab, load, read

EVERY = "flip + scale-50 + scale-75 + scale-125 + scale-150"
CHOSEN = "flip + scale-75 + scale-125"
SHIFTS = ("gaussian-noise-1", "contrast-3", "fog-1", "motion-blur-1")
GROUPS = (30,)
"""Test images that a segmenter is adapted to at once."""


# ---- collect: needs the photographs


def shifted(pixels: Tensor, name: str) -> Tensor:
    """Corrupt photographs, one by one."""
    view = CORRUPTIONS[name]
    found = []
    for row, one in enumerate(pixels):
        image = one[None].float() / 255
        u = atta.data.draws.random_numbers(name, view.count(image), torch.tensor([row]))
        found.append((view(image, u) if view.random else view(image)) * 255)
    return torch.cat(found).round().to(torch.uint8)


def sampled(network: nn.Module, x: Tensor, y: Tensor, policy: str, device: str) -> atta.Record:
    """Random pixels of images with masks."""
    how = Execution(device=device, progress=False)
    run = PixelRun(as_dense(network), scenes(x, y), how, ignored=IGNORED)
    return run.record(Policy.parse(policy), Policy(()), {"dataset": "camvid"}).record


@torch.no_grad()
def whole(segmenter: atta.CalibratedSegmenter, x: Tensor, y: Tensor, device: str) -> dict[str, Any]:
    """Every pixel of whole images: changed labels, Brier score and NLL of network and segmenter."""
    changed = again = pixels = 0
    counts = torch.zeros(CLASSES, CLASSES, dtype=torch.float64)
    totals = torch.zeros(5, dtype=torch.float64)
    for image, mask in zip(x, y, strict=True):
        one = image[None].to(device)
        tiles = [(p, z) for p, z, _ in segmenter._tiles(as_pixels(one, torch.float32))]
        changed += sum(int((p.argmax(1) != z.argmax(1)).sum()) for p, z in tiles)
        logits = segmenter.model(as_pixels(one, torch.float32))  # once more, alone
        probs = segmenter(one)
        again += int((probs.argmax(1) != logits.argmax(1)).sum())
        pixels += mask.numel()
        known = mask.flatten().to(device) != IGNORED
        truth = mask.flatten().to(device).long()[known]
        rows = [p[0].flatten(1).T[known].double() for p in (logits.softmax(1), probs)]
        counts += confusion(rows[0].argmax(1), truth, CLASSES).cpu()
        part = [float(known.sum())]
        for p in rows:
            right = (p.argmax(1) == truth).double()
            part += [
                float((p.amax(1) - right).square().sum()),
                float(-p.gather(1, truth[:, None]).clamp_min(1e-38).log().sum()),
            ]
        totals += torch.tensor(part, dtype=torch.float64)
    names = ("brier_before", "nll_before", "brier", "nll")
    means = dict(zip(names, (totals[1:] / totals[0]).tolist(), strict=True))
    accuracy = float(counts.diag().sum() / counts.sum())
    return {
        "pixels": pixels,
        "changed": changed,
        "other in another pass": again,
        "accuracy": accuracy,
        "miou": miou(counts),
        **means,
    }


def adapted(segmenter: atta.CalibratedSegmenter, x: Tensor, y: Tensor) -> list[dict[str, Any]]:
    """Adapt to consecutive groups of images, and to all; measure on those images."""
    found = []
    for size in (*GROUPS, len(x)):
        for start in range(0, len(x) - size + 1, max(size, 30)):
            images, masks = x[start : start + size], y[start : start + size]
            record = segmenter.record(images, masks, ignore_index=IGNORED)
            drift = segmenter.drift(images)
            now = segmenter.adapt(images)
            scores = {
                when: atta.evaluate(one.calibrator(record.predictions), record.labels)
                for when, one in (("before", segmenter), ("after", now))
            }
            kept = ("brier", "nll", "ece", "accuracy")
            found.append(
                {
                    "images": size,
                    "start": start,
                    "estimate": drift.accuracy,
                    "low": drift.low,
                    "high": drift.high,
                    "p": drift.p_value,
                    "softness": now.adapted.softness,
                    "accuracy": scores["before"]["accuracy"],
                    **{f"{k} {when}": s[k] for when, s in scores.items() for k in kept[:3]},
                }
            )
    return found


def collect(args: argparse.Namespace) -> None:
    """Records and numbers of each network, each in a process of its own."""
    names = args.names.split(",")
    if len(names) > 1:
        command = [sys.executable, "-m", "benchmarks.segmentation", *sys.argv[1:], "--names"]
        running = [subprocess.Popen([*command, name]) for name in names]
        if worst := max(abs(process.wait()) for process in running):
            sys.exit(worst)
        return
    (name,), device, out = names, args.device, Path(args.out)
    into = out / name
    into.mkdir(parents=True, exist_ok=True)
    network = load(name, args.weights)
    sets = {s: [each[:: args.every] for each in read(args.data, s)[1:]] for s in ("val", "test")}
    began = time.perf_counter()

    def tell(what: str) -> None:
        print(f"{name} {time.perf_counter() - began:.0f}s {what}", flush=True)

    segmenter = atta.calibrate(
        network, *sets["val"], ignore_index=IGNORED, device=device, progress=False
    ).to(device)
    segmenter.save(into / "segmenter.safetensors")
    numbers: dict[str, Any] = {"summary": str(segmenter.summary), "chosen": str(segmenter.policy)}
    tell(numbers["summary"])
    for split, (x, y) in sets.items():
        sampled(network, x, y, EVERY, device).save(into / f"{split}.safetensors", half=True)
    tell("records")
    numbers["drift on val"] = adapted(segmenter, *sets["val"])
    numbers["drift on test"] = adapted(segmenter, *sets["test"])
    tell("adapted")
    for policy in dict.fromkeys((CHOSEN, str(segmenter.policy))):
        one = segmenter
        if str(segmenter.policy) != policy:
            one = atta.calibrate(
                network, *sets["val"], ignore_index=IGNORED, device=device, progress=False,
                policy=policy, rehearse=False,
            ).to(device)  # fmt: skip
        for method in (one,):
            numbers[f"whole, {policy}"] = whole(method, *sets["test"], device)
    tell(json.dumps(numbers[f"whole, {CHOSEN}"]))
    for shift in SHIFTS:
        x = shifted(sets["test"][0][::3], shift)
        record = sampled(network, x, sets["test"][1][::3], CHOSEN, device)
        record.save(into / f"{shift}.safetensors", half=True)
    tell("shifts")
    (into / "numbers.json").write_text(json.dumps(numbers, indent=1))
    with zipfile.ZipFile(out / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(into.iterdir()):
            if path.name != "segmenter.safetensors":
                archive.write(path, f"{name}/{path.name}")
                path.unlink()
    tell("done")


def everywhere(args: argparse.Namespace) -> None:
    """Changed pixels and scores of each network's segmenter on all test pixels."""
    test = [each[:: args.every] for each in read(args.data, "test")[1:]]
    val = [each[:: args.every] for each in read(args.data, "val")[1:]]
    found = {}
    for name in args.names.split(","):
        how = {"ignore_index": IGNORED, "device": args.device, "progress": False}
        network = load(name, args.weights)
        segmenter = atta.calibrate(network, *val, policy=CHOSEN, **how)
        found[name] = whole(segmenter.to(args.device), *test, args.device)
        print(name, json.dumps(found[name]), flush=True)
        found[name]["drift"] = adapted(segmenter, *test)
        print(name, json.dumps(found[name]["drift"][-1]), flush=True)
    if args.out:
        Path(args.out).write_text(json.dumps(found, indent=1) + "\n")


# ---- tables: needs the records


METHODS: dict[str, tuple[atta.Method, str]] = {
    "temperature": (atta.TemperatureScaling(), ""),
    "c-atta, flip": (atta.CATTA(), "flip"),
    "c-atta, flip + scale-125": (atta.CATTA(), "flip + scale-125"),
    "c-atta, flip + scale-75 + scale-125": (atta.CATTA(), CHOSEN),
    "v-atta, flip + scale-75 + scale-125": (atta.VATTA(), CHOSEN),
    "mean-tta-temperature, flip + scale-75 + scale-125": (atta.MeanTTATemperature(), CHOSEN),
    "c-atta, all five": (atta.CATTA(), EVERY),
}


def viewed(record: atta.Record, policy: str) -> atta.Predictions:
    """The predictions with the views of a policy."""
    return record.predictions.select(Policy.parse(policy).kinds if policy else ())


def scores(record: atta.Record, probs: Tensor, sure: Tensor) -> dict[str, float]:
    """What the page shows of a method."""
    labels = record.require_labels()
    found = atta.evaluate(probs, labels, metrics=("brier", "nll", "ece", "classwise_ece"))
    own = record.predictions.logits.argmax(1)
    return found | {
        "error_auroc": error_auroc(sure, own == labels),
        "changed": int((probs.argmax(1) != own).sum()),
    }


def blocks(images: Tensor, count: int) -> list[Tensor]:
    """Parts of consecutive frames: a scene that is left out has no neighbour among the others."""
    return [torch.isin(images, part) for part in images.unique().tensor_split(count)]


def left_out(method: atta.Method, record: atta.Record, policy: str) -> tuple[Tensor, Tensor]:
    """Answers to each of five scenes, by a calibrator fitted on the others."""
    predictions, labels = viewed(record, policy), record.require_labels()
    probs = torch.empty(len(predictions), predictions.classes)
    sure = torch.empty(len(predictions))
    for part in blocks(record.predictions.images, 5):
        fitted = method.fit(predictions[(~part).nonzero()[:, 0]], labels[~part])
        rows = predictions[part.nonzero()[:, 0]]
        probs[part], sure[part] = fitted(rows), fitted.confidence(rows)
    return probs, sure


def compared(record: atta.Record, answers: dict[str, tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """Scores of all methods, and paired differences by image to temperature and to the mean."""
    labels, images = record.require_labels(), record.predictions.images
    found: dict[str, Any] = {}
    for name, (probs, sure) in answers.items():
        found[name] = scores(record, probs, sure)
        for other in ("temperature", "mean-tta-temperature, flip + scale-75 + scale-125"):
            if name != other:
                found[name][f"to {other}"] = atta.paired(
                    probs, answers[other][0], labels, metrics=("brier", "nll"), images=images
                )
    return found


def few(val: atta.Record, test: atta.Record, images: int = 10, draws: int = 20) -> dict[str, float]:
    """The share of the gain over temperature scaling that so many labelled images give."""
    method, policy = METHODS["c-atta, flip + scale-75 + scale-125"]
    labels, seen = test.require_labels(), viewed(test, policy)
    numbers = val.predictions.images.unique()

    def measured(rows: Tensor) -> tuple[float, float]:
        own, y = viewed(val, policy)[rows], val.require_labels()[rows]
        found = atta.evaluate(method.fit(own, y)(seen), labels, metrics=("brier", "nll"))
        return found["brier"], found["nll"]

    full = measured(torch.arange(len(val)))
    plain = atta.TemperatureScaling().fit(viewed(val, ""), val.require_labels())
    base = atta.evaluate(plain(viewed(test, "")), labels, metrics=("brier", "nll"))
    shares = []
    for draw in range(draws):
        generator = torch.Generator().manual_seed(draw)
        chosen = numbers[torch.randperm(len(numbers), generator=generator)[:images]]
        part = measured(torch.isin(val.predictions.images, chosen).nonzero()[:, 0])
        shares.append(
            [(b - p) / (b - f) for b, p, f in zip(base.values(), part, full, strict=True)]
        )
    brier, nll = zip(*shares, strict=True)
    return {
        "brier": statistics.mean(brier),
        "nll": statistics.mean(nll),
        "brier, worst": min(brier),
        "nll, worst": min(nll),
    }


RENAMED = {"half": "scale-50", "smaller": "scale-75", "larger": "scale-125", "largest": "scale-150"}
"""Names of scales in records of the first run."""


def opened(path: Path) -> atta.Record:
    """A record, with the names that scales have now."""
    record = atta.Record.load(path)
    predictions = record.predictions
    views = {RENAMED.get(name, name): view for name, view in predictions.views.items()}
    found = atta.Predictions(predictions.logits, views, predictions.images)
    return atta.Record(found, record.labels, record.origin)


def thin(args: argparse.Namespace) -> None:
    """Write every fourth pixel of the records, with the chosen views, for the repository."""
    for name in args.names.split(","):
        with zipfile.ZipFile(Path(args.folder) / f"{name}.zip") as archive:
            archive.extractall(args.folder)
        for split in ("val", "test"):
            record = opened(Path(args.folder) / name / f"{split}.safetensors")[::4]
            seen = record.predictions.select(Policy.parse(CHOSEN).kinds)
            about = {
                "pixels": "50",
                "policy": CHOSEN,
                "passes": "4",
                "network": name,
                "split": split,
            }
            kept = atta.Record(seen, record.labels, {**record.origin, **about})
            print(kept.save(Path(args.out) / f"camvid_{name}_{split}.safetensors", half=True))


def tables(args: argparse.Namespace) -> None:
    """Print the tables of the page, and write the numbers beside the records."""
    every: dict[str, Any] = {}
    for name in args.names.split(","):
        folder = Path(args.folder) / name
        if not folder.is_dir():
            with zipfile.ZipFile(Path(args.folder) / f"{name}.zip") as archive:
                archive.extractall(args.folder)
        records = {
            path.stem: opened(path)
            for path in folder.glob("*.safetensors")
            if "segmenter" not in path.name
        }
        val = records.pop("val")
        every[name] = {
            "val": compared(val, {n: left_out(m, val, p) for n, (m, p) in METHODS.items()})
        }
        fitted = {n: (m.fit(viewed(val, p), val.labels), p) for n, (m, p) in METHODS.items()}
        for split, record in records.items():
            answers = {}
            for method, (one, policy) in fitted.items():
                if set(Policy.parse(policy).kinds if policy else ()) <= set(
                    record.predictions.kinds
                ):
                    seen = viewed(record, policy)
                    answers[method] = (one(seen), one.confidence(seen))
            every[name][split] = compared(record, answers)
        every[name]["ten images"] = few(val, records["test"])
        said = folder / "numbers.json"
        every[name]["collected"] = json.loads(said.read_text()) if said.is_file() else {}
        print(shown(name, every[name]), flush=True)
    if args.out:
        Path(args.out).write_text(json.dumps(every, indent=1) + "\n")


def shown(name: str, found: dict[str, Any]) -> str:
    """Markdown: a line for each method, for each set of images."""
    lines = []
    for split, methods in found.items():
        if split in ("ten images", "collected"):
            continue
        lines += [
            "",
            f"{name}, {split}",
            "",
            "| method | Brier | NLL | ECE | class ECE | AUROC of errors | Brier to temperature | NLL to temperature | changed |",
        ]
        lines.append("|---|---|---|---|---|---|---|---|---|")
        base = methods["temperature"]
        for method, row in methods.items():
            cells = [
                f"{row[k]:.4f}" for k in ("brier", "nll", "ece", "classwise_ece", "error_auroc")
            ]
            for k in ("brier", "nll"):
                low, high = row.get("to temperature", {}).get(k, (0.0, 0.0))
                part = row[k] / base[k] - 1
                cells.append(f"{part:+.1%} ({low / base[k]:+.1%} to {high / base[k]:+.1%})")
            lines.append(f"| {method} | {' | '.join(cells)} | {row['changed']} |")
        against = methods["c-atta, flip + scale-75 + scale-125"].get(
            "to mean-tta-temperature, flip + scale-75 + scale-125", {}
        )
        lines.append(f"\nc-atta minus mean + temperature, same views: {against}")
    lines.append(f"\nten images: {found['ten images']}")
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
    views = Policy.parse(CHOSEN)
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
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("collect")
    four = commands.add_parser("whole")
    for each in (one, four):
        each.add_argument("data")
        each.add_argument("weights")
        each.add_argument("--every", type=int, default=1, help="take every n-th image: a trial")
    two = commands.add_parser("tables")
    five = commands.add_parser("thin")
    two.add_argument("folder")
    five.add_argument("folder")
    three = commands.add_parser("cost")
    three.add_argument("--way")
    three.add_argument("--side", type=int, default=1024)
    three.add_argument("--turns", type=int, default=3)
    six = commands.add_parser("picture")
    six.add_argument("data")
    six.add_argument("weights")
    six.add_argument("--image", type=int, default=100)
    for each in (one, two, three, four, five, six):
        each.add_argument("--out")
        each.add_argument("--names", default=",".join(NETWORKS))
        each.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args(words)


if __name__ == "__main__":
    arguments = parsed()
    {
        "collect": collect,
        "tables": tables,
        "thin": thin,
        "picture": picture,
        "cost": cost,
        "whole": everywhere,
    }[arguments.command](arguments)
