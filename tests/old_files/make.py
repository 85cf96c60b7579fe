"""Write the old files. They were written by atta 0.1.0; do not regenerate with later versions.

    cd tests/old_files && python make.py

The tests in `test_old_files.py` read these files with the version at hand and compare what comes
out with `expected.json`, which this script also wrote. Two things are small on purpose, and do not
change a format: shards hold 16 images, and the trained network is sparse, so that it compresses.
The exporter's stack traces were stripped from graph.onnx afterwards, and its new hash was written
into the log of predictions.
"""

import io
import json
import shutil
import sys
import zipfile
from contextlib import redirect_stdout
from pathlib import Path
from unittest import mock

HERE = Path(__file__).parent
NAMES = ["a", "b", "c"]
POLICY = "flip + 2 shift"


def typed(*arguments):
    """Run a command and return what it printed."""
    from atta.cli.app import app

    said = io.StringIO()
    with mock.patch.object(sys, "argv", ["atta", *map(str, arguments)]), redirect_stdout(said):
        try:
            app()
        except SystemExit as end:
            if end.code:
                raise AssertionError(arguments, said.getvalue()) from None
    return said.getvalue()


class Stop(Exception):
    """Ends a run in the middle, as a person would."""


def stop_after(passes):
    """Return a function for `progress=` that raises once so many passes are done."""
    done = 0

    def tell(more):
        nonlocal done
        done += more
        if done >= passes:
            raise Stop

    return tell


def stopped(call, *arguments, **settings):
    """Run something that is stopped in the middle."""
    try:
        call(*arguments, **settings)
    except Stop:
        return
    raise AssertionError("it came to its end")


def record_files(expected):
    """A record as a file and as a folder, and runs that were stopped."""
    from old_network import Network, images

    import atta

    pixels, labels = images(48)
    how = {"policy": POLICY, "batch_size": 8, "rehearse": True, "seed": 3}
    record = atta.collect(Network(), pixels, labels, progress=False, **how)
    record.save("record.safetensors")
    with mock.patch("atta.collection.shards.PASSES", 64):
        atta.collect(Network(), pixels, labels, progress=False, output="record", **how)
        stop = {"progress": stop_after(4 * 30), **how}
        stopped(atta.collect, Network(), pixels, labels, output="stopped_record", **stop)
    how |= {"rehearse": False}
    stop = {"progress": stop_after(4 * 30), **how}
    stopped(atta.collect, Network(), pixels, labels, shards="stopped_shards", **stop)
    expected["record"] = {
        "logits": record.predictions.logits.tolist(),
        "views": {name: view.tolist() for name, view in record.predictions.views.items()},
        "labels": record.labels.tolist(),
        "repr": repr(record),
    }
    return record


def calibrator_files(expected, record):
    """Every method, fitted and saved."""
    import atta

    Path("calibrators").mkdir()
    for name in atta.METHODS:
        calibrator = atta.find_method(name).fit(record.predictions, record.labels)
        calibrator.save(f"calibrators/{name}.safetensors")
        expected["calibrators"][name] = calibrator(record.predictions[:8]).tolist()
    free = atta.find_method("c-atta", keep_class=False).fit(record.predictions, record.labels)
    free.save("calibrators/c-atta, no guard.safetensors")
    expected["calibrators"]["c-atta, no guard"] = free(record.predictions[:8]).tolist()


def results_files(expected):
    """The numbers of `atta compare` and of an experiment."""
    import atta

    Path("experiment.toml").write_text(
        'dataset = "shop"\nfit = "record"\nvalidation = 24\nsplits = 2\n'
        '[methods.temperature]\n[methods."my c-atta"]\nmethod = "c-atta"\n',
        encoding="utf-8",
    )
    methods = "vanilla,temperature,c-atta"
    few = ["--validation", 24, "--splits", 2]
    typed("compare", "record.safetensors", "--methods", methods, *few, "--json", "compared.json")
    typed("run", "experiment.toml", "--records", ".", "-o", "results.json")
    for name in ("compared", "results"):
        rows = atta.Results.load(f"{name}.json").rows
        expected[name] = [[row.method, row.metric, row.split, row.value] for row in rows]


def photographs():
    """The files that predict is given."""
    from old_network import images
    from PIL import Image

    Path("photos").mkdir()
    for i, pixels in enumerate(images(6, seed=2)[0]):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(f"photos/{i}.png")


def classifier_files(expected):
    """A classifier as folder and file, adapted, with preprocessing, and as a graph."""
    import torch
    from old_network import Network, images

    import atta

    pixels, labels = images(120, seed=1)
    how = {"policy": POLICY, "class_names": NAMES, "progress": False}
    classifier = atta.calibrate(Network(), pixels, labels, **how)
    assert classifier.reference.slope is not None
    classifier.save("classifier")
    classifier.save("classifier.safetensors")
    classifier.export("graph.onnx")
    dark = (pixels * 0.92).byte()
    adapted = classifier.adapt(dark)
    adapted.save("adapted.safetensors")
    preprocess = atta.Preprocess(resize=9, crop=8, mean=(0.5,) * 3, std=(0.25,) * 3)
    sized = atta.calibrate(Network(), pixels, labels, preprocess=preprocess, **how)
    sized.save("preprocessing.safetensors")
    gated = atta.calibrate(Network(), pixels, labels, method=atta.SelectiveVATTA(passes=2.0), **how)
    gated.save("selective.safetensors")
    shown = images(6, seed=2)[0]
    drift = classifier.drift(dark)
    expected["classifier"] = {
        "probs": classifier(shown).tolist(),
        "sets": classifier.predict_set(shown, coverage=0.8).tolist(),
        "summary": str(classifier.summary),
        "drift": [drift.images, drift.accuracy, drift.low, drift.high, drift.p_value],
        "adapted": adapted(shown).tolist(),
        "adapted says": str(adapted.adapted),
        "preprocessing": sized(shown).tolist(),
        "files": torch.from_numpy(sized.predict_proba("photos")).tolist(),
        "selective": gated(shown).tolist(),
    }
    typed("predict", "graph.onnx", "photos", "-o", "whole.jsonl", "--probs", "--coverage", "0.8")
    with mock.patch("atta.deploy.predict._finish", side_effect=Stop):
        predict_stopped()
    log = Path("stopped.jsonl.part").read_text(encoding="utf-8").splitlines(keepends=True)
    Path("stopped.jsonl.part").write_text("".join(log[:5]) + log[5][:40], encoding="utf-8")


def predict_stopped():
    """Leave the log of a run of predict that a kill ended while it wrote its fifth line."""
    try:
        arguments = "--probs", "--coverage", "0.8", "--batch-size", "2"
        typed("predict", "graph.onnx", "photos", "-o", "stopped.jsonl", *arguments)
    except (Stop, AssertionError):
        return


def training_files(expected):
    """A saved set of images, a trained network, and a checkpoint of the same run."""
    import torch
    from atta.images.sets import ImageSet

    import atta
    from atta.networks import resnet

    def dots(count, seed):
        draw = torch.Generator().manual_seed(seed)
        labels = torch.arange(count) % 3
        pixels = (torch.rand(count, 3, 8, 8, generator=draw) < 0.35) * 255
        pixels[torch.arange(count), labels] |= (torch.rand(count, 8, 8, generator=draw) < 0.3) * 255
        return ImageSet("dots", pixels.byte(), labels, NAMES)

    folder = Path("training/data/dots")
    folder.mkdir(parents=True)
    dots(48, 0).save(folder / "train.safetensors")
    dots(24, 1).save(folder / "test.safetensors")

    def sparse(*arguments, **settings):
        network = built(*arguments, **settings)
        with torch.no_grad():
            for layer in network:
                if isinstance(layer, torch.nn.Conv2d):
                    layer.weight[4:] = 0
                    layer.weight[:, 4:] = 0
                    layer.weight *= 4
                if isinstance(layer, torch.nn.Linear):
                    layer.weight[:, 4:] = 0
        return network

    built = resnet.MODELS["small_cnn"]
    recipe = ["--steps", 24, "--set", "batch_size=16", "--set", "peak_lr=0.2"]
    train = ["train", "dots", "--data", "training/data", "--model", "small_cnn", *recipe]
    with (
        mock.patch.dict(resnet.MODELS, small_cnn=sparse),
        mock.patch("atta.networks.training.CHECKPOINT_SECONDS", -1.0),
    ):
        said = typed(*train, "-o", "training/finished")
        typed_until_epoch_two(train)
    expected["training"] = {"arguments": list(map(str, train)), "says": said.splitlines()[-1]}
    how = ["--data", "training/data", "--split", "test", "--policy", "flip"]
    typed("collect", "training/finished", "dots", *how, "-o", "training/record.safetensors")
    calibrate = "--policy", "flip", "--data", "training/data", "--split", "train"
    typed("calibrate", "training/finished", "dots", *calibrate, "-o", "training/classifier")
    classifier = atta.CalibratedClassifier.load("training/classifier")
    expected["training"]["probs"] = classifier(dots(24, 1).images[:6]).tolist()


def typed_until_epoch_two(train):
    """Train, and stop after the second epoch."""
    from atta.networks.trained import RunFolder

    write, written = RunFolder.write_checkpoint, 0

    def stopping(self, *arguments):
        nonlocal written
        write(self, *arguments)
        written += 1
        if written == 2:
            raise KeyboardInterrupt

    with mock.patch.object(RunFolder, "write_checkpoint", stopping):
        try:
            typed(*train, "-o", "training/stopped")
        except AssertionError:
            return


def main():
    """Write everything next to this script, in place of what is there."""
    import os

    import atta

    assert atta.__version__ == "0.1.0", "written by 0.1.0; do not regenerate with later versions"
    os.chdir(HERE)
    sys.path.insert(0, str(HERE))
    for path in HERE.iterdir():
        if path.suffix != ".py":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    expected = {"version": atta.__version__, "calibrators": {}}
    photographs()
    calibrator_files(expected, record_files(expected))
    results_files(expected)
    classifier_files(expected)
    training_files(expected)
    with zipfile.ZipFile("training.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(Path("training").rglob("*")):
            if path.is_file() and not path.name.startswith("."):
                archive.write(path)
    shutil.rmtree("training")
    text = json.dumps(expected, indent=None, separators=(",", ":"))
    Path("expected.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
