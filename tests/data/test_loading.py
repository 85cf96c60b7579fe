"""Reading in processes: the bits, faults and sentences of one process, whatever their number."""

import multiprocessing
import os
import pickle
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset
from torch.utils.data._utils import worker

from atta import Preprocess
from atta._base.errors import InputError
from atta._base.files import locked
from atta.data import loading
from atta.data.image_set import BadImage, ImageSet
from atta.data.source import ItemSource, as_source, batches_of
from scenarios import Items, twenty

forks = pytest.mark.skipif(not loading.FORK, reason="processes are not forked on this system")


@pytest.fixture
def made(monkeypatch, tmp_path_factory):
    """The processes in which images were read since it was last asked."""
    log, read = tmp_path_factory.mktemp("made") / "processes", ItemSource.item

    def logged(self, *arguments):
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return read(self, *arguments)

    def asked():
        found = {int(line) for line in log.read_text().split()} if log.exists() else set()
        log.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(ItemSource, "item", logged)
    return asked


def everything(source, size=6, **how):
    return list(source.read(batches_of(size, 0, source.count), **how))


def same(one, other):
    assert [list(batch.positions) for batch in one] == [list(batch.positions) for batch in other]
    assert [batch.faults for batch in one] == [batch.faults for batch in other]
    for mine, theirs in zip(one, other, strict=True):
        assert torch.equal(mine.pixels, theirs.pixels)
        assert mine.pixels.dtype == theirs.pixels.dtype
        assert (mine.labels is None) == (theirs.labels is None)
        assert mine.labels is None or torch.equal(mine.labels, theirs.labels)


@pytest.fixture
def small(monkeypatch):
    """Pieces of four images, and processes for as few."""
    monkeypatch.setattr(loading, "PIECE", 4)
    monkeypatch.setattr(loading, "EACH", 4)
    monkeypatch.setattr(loading, "cores", lambda: 3)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("size", [3, 20])
@pytest.mark.parametrize("kind", ["files", "bytes", "floats"])
def test_any_number_of_processes_gives_the_same_batches(folder, small, made, kind, size, workers):
    images = {
        "files": folder,
        "bytes": Items(twenty(), list(range(20))),
        "floats": Items(twenty().float() / 255, list(range(20))),
    }
    source = as_source(images[kind])
    here = everything(source, size)
    assert made() == {os.getpid()}
    same(here, everything(source, size, workers=workers))
    assert len(made() - {os.getpid()}) == workers
    assert multiprocessing.active_children() == []


def test_faults_and_errors_are_those_of_one_process(folder, small):
    files = sorted(folder.rglob("*.png"))
    for row in (2, 9, 10, 11):
        files[row].write_bytes(b"no image")
    source = as_source(folder)
    for size in (4, 20):
        how = {"skip": BadImage}
        same(everything(source, size, **how), everything(source, size, workers=2, **how))
    found = []
    for workers in (0, 2):
        batches = source.read(batches_of(2, 0, 20), workers)
        assert next(batches).positions[-1] == 1
        with pytest.raises(BadImage) as refused:
            next(batches)
        found.append(str(refused.value))
    assert found[0] == found[1]
    assert files[2].name in found[0]


@forks
def test_auto_starts_processes_for_many_files_and_for_nothing_else(
    folder, small, made, monkeypatch
):
    def others(images, workers="auto"):
        everything(as_source(images), workers=workers)
        return made() - {os.getpid()}

    assert len(others(folder)) == 3
    photographs = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in twenty()]
    assert others(photographs) == others(Items(twenty(), list(range(20)))) == set()
    assert others(photographs, workers=2) == set()  # read here: files may be open
    monkeypatch.setattr(loading, "EACH", 11)
    assert others(folder) == set()


@forks
def test_where_processes_cannot_start_auto_reads_here_and_a_number_is_refused(
    folder, small, monkeypatch
):
    def full(*_, **__):
        raise OSError("no more processes")

    source = as_source(folder)
    monkeypatch.setattr(loading, "DataLoader", full)
    assert len(everything(source, workers="auto")) == 4
    with pytest.raises(InputError, match="cannot start: no more processes; give workers=0"):
        everything(source, workers=2)


def test_a_process_that_is_killed_is_a_sentence():
    class Deadly(Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, row):
            if row == 13:
                os.kill(os.getpid(), signal.SIGKILL)
            return twenty()[row]

    with pytest.raises(InputError, match=r"workers: expected 2 processes .* but one ended"):
        everything(as_source(Deadly()), workers=2)


def test_what_a_dataset_raises_stays_what_it_is():
    class Faulty(Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, row):
            if row == 13:
                raise RuntimeError("a fault of its own")
            return twenty()[row]

    for workers in (0, 2):
        with pytest.raises(RuntimeError, match="a fault of its own"):
            everything(as_source(Faulty()), workers=workers)


def test_the_caller_s_generator_is_left_alone(folder, small):
    before = torch.get_rng_state()
    everything(as_source(folder), workers=2)
    assert torch.equal(torch.get_rng_state(), before)


def test_processes_end_with_a_reader_that_is_closed(folder, small):
    batches = as_source(folder).read(batches_of(2, 0, 20), 2)
    next(batches)
    assert len(multiprocessing.active_children()) == 2
    batches.close()
    assert multiprocessing.active_children() == []


@forks
def test_processes_end_with_their_parent_and_its_locks_at_once(folder, small, monkeypatch):
    monkeypatch.setattr(worker, "MP_STATUS_CHECK_INTERVAL", 0.1)
    output, (reading, writing) = folder / "out", os.pipe()
    source = as_source(folder)
    if not (parent := os.fork()):
        with locked(output):
            batches = source.read(batches_of(2, 0, 20), 1)
            next(batches)
            (child,) = multiprocessing.active_children()
            os.write(writing, str(child.pid).encode())
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(parent, 0)
    with locked(output):
        pass
    reader = int(os.read(reading, 100))
    os.close(reading)
    os.close(writing)
    end = time.monotonic() + 10
    while True:
        try:
            state = Path(f"/proc/{reader}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state == "Z":  # nobody waits for it here
            return
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("kind", ["files", "preprocessed", "table"])
def test_what_processes_get_can_be_pickled(folder, kind):
    images = folder
    if kind == "preprocessed":
        images = ImageSet("some", twenty()).preprocessed(Preprocess(resize=4))
    if kind == "table":
        hf = pytest.importorskip("datasets")
        columns = {"image": [str(file) for file in sorted(folder.rglob("*.png"))]}
        images = hf.Dataset.from_dict(columns).cast_column("image", hf.Image())
    source = as_source(images)
    read = pickle.loads(pickle.dumps(source.read))
    same(list(read([range(20)])), list(source.read([range(20)])))


@pytest.mark.parametrize(
    ("free", "size", "number", "piece"),
    [(10**9, 150_000, 16, 64), (64 << 20, 150_000, 16, 4), (2 << 20, 150_000, 2, 1), (0, 1, 1, 1)],
)
def test_pieces_fit_into_the_shared_memory_of_a_container(monkeypatch, free, size, number, piece):
    monkeypatch.setattr(loading.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    assert loading._fitting(16, 100, size) == (number, piece)
    assert loading._fitting(16, 3, size)[1] <= 3


@pytest.mark.parametrize("workers", [-1, "many", 1.5])
def test_a_number_of_processes_is_a_whole_number(workers):
    with pytest.raises(InputError, match="workers: expected 'auto', or a number of processes"):
        loading.check_workers(workers)
