"""Files are written completely or not at all, whichever library writes and whatever stops it."""

import errno
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
import torch

from atta import VATTA, Record
from atta._base.errors import InputError
from atta._base.files import digest, named, whole_file, whole_folder
from atta.classifier.predict import write_table
from atta.lab.fits import Fit, Fits, Rows
from atta.lab.recipe import RunFolder
from atta.networks.description import save_weights
from atta.record.writer import ShardWriter
from atta.report.figures.detail import reliability
from atta.report.figures.theme import picture
from atta.report.page import write_report
from atta.results.rows import Results
from scenarios import answers, blend, made_up, many, small_network

resource = pytest.importorskip(
    "resource", reason="limits of a process, which Windows does not have"
)


def write(path: Path, text: str = "new") -> None:
    with whole_file(path) as part:
        part.write_text(text)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def fail_half_way() -> None:
        with whole_file(path) as part:
            part.write_text("half of the n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail_half_way()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(InputError, match="got the folder"), whole_file(tmp_path):
        pass


# ---- places


def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path):
    (tmp_path / "real").mkdir()
    target, link, chain = tmp_path / "real" / "file", tmp_path / "link", tmp_path / "chain"
    link.symlink_to("real/file")
    chain.symlink_to(link)
    for path, text in ((link, "through a link to nothing yet"), (chain, "through two links")):
        write(path, text)
        assert link.is_symlink()
        assert chain.is_symlink()
        assert target.read_text() == text
        assert not target.is_symlink()
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(InputError, match="a link that leads in a circle"):
        write(tmp_path / "a")


def test_a_device_or_a_pipe_is_written_to_and_never_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write(pipe, "down the pipe")
    assert os.read(reader, 100) == b"down the pipe"
    os.close(reader)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]
    before = Path("/dev/null").stat()
    (tmp_path / "nowhere").symlink_to("/dev/null")
    for path in (Path("/dev/null"), tmp_path / "nowhere"):
        made_up(20).save(path)
        assert Path("/dev/null").stat() == before
    with pytest.raises(InputError, match=r"^/dev/full cannot be written: no space left on device$"):
        write(Path("/dev/full"))


def test_the_standard_output_is_a_place_as_well(tmp_path):
    script = """
from atta._base.files import whole_file
with whole_file('/dev/stdout') as part: part.write_text('text')
"""
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout
        == b"text"
    )
    with (tmp_path / "file").open("wb") as file:
        subprocess.run(
            [sys.executable, "-c", f"print('above', flush=True)\n{script}"], stdout=file, check=True
        )
    assert (tmp_path / "file").read_bytes() == b"above\ntext"


def test_a_name_that_no_file_system_takes_is_a_sentence(tmp_path):
    long = tmp_path / ("x" * 250)
    write(long)
    assert list(tmp_path.iterdir()) == [long]
    for name in ("x" * 256, "é" * 128, f"{'x' * 300}/file"):
        for use in (write, Record.load, Results.load):
            with pytest.raises(InputError, match=r"expected the name of a file, got .*too long"):
                use(tmp_path / name)
    with pytest.raises(InputError, match="file name too long"):
        write(tmp_path / "new" / ("x" * 300))
    for impossible in ("a\0b", "\ud800"):
        with pytest.raises(InputError, match="no file can have it"):
            named(impossible)
    with pytest.raises(InputError, match=r"expected the name of a file, got 'a/a/.*too long"):
        named("a/" * 3000)


# ---- what was left behind


def test_what_a_killed_process_left_is_removed_by_the_next_that_writes(tmp_path):
    path = tmp_path / "file"
    script = f"""
import os, signal
from atta._base.files import whole_file, whole_folder
with whole_folder({str(tmp_path / "folder")!r}) as folder, whole_file({str(path)!r}) as part:
    part.write_text("half of the n")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    dead = subprocess.Popen([sys.executable, "-c", script])
    dead.wait()
    assert len(list(tmp_path.iterdir())) == 2
    left = next(tmp_path.glob(".file.*.part"))
    kept = [
        tmp_path / f".other.{dead.pid}.part",
        tmp_path / left.name.replace(f"-{dead.pid}-", f"-{os.getppid()}-"),
        tmp_path / ".file.00000000-1-0.part",
    ]
    for one in kept:  # another program's, of a process that lives, and of another machine
        one.mkdir()
    with whole_file(path) as part, whole_file(path) as second:  # two at once, too
        part.write_text("one")
        second.write_text("two")
    assert path.read_text() == "one"
    assert set(tmp_path.iterdir()) == {path, *kept}
    os.utime(kept[2], (0, 0))
    write(path)
    assert set(tmp_path.iterdir()) == {path, *kept[:2]}


def test_what_a_library_lays_beside_the_file_it_writes_is_removed_as_well(tmp_path):
    path = tmp_path / "file"
    script = f"""
import os, signal
from atta._base.files import whole_file
with whole_file({str(path)!r}) as part:
    part.with_name(".tmpAbCdEf").write_text("half of the n")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", script], check=False)
    assert [one.suffix for one in tmp_path.iterdir()] == [".part"]
    with whole_file(path) as part:
        part.with_name(".tmpAbCdEf").write_text("another")
        part.write_text("new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


# ---- no room


@contextmanager
def full(size: int = 64) -> Iterator[None]:
    """No file can grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@cache
def record() -> Record:
    return made_up(60)


def fitted():
    return VATTA().fit(record().predictions, record().require_labels())


@cache
def chart():
    return reliability(*answers())


def table(path: Path) -> None:
    rows = ({"file": f"{i}.png", "class": "cat", "confidence": 0.5} for i in range(5000))
    with whole_file(path) as part:
        write_table(part, rows, ending=path.suffix)


def checkpoint(path: Path) -> None:
    network = small_network()
    RunFolder(path.parent, {}).write_checkpoint(
        network, torch.optim.SGD(network.parameters(), momentum=0.9), []
    )


def graph(path: Path) -> None:
    blend(small_network(), "flip").export(path)


def shard(path: Path) -> None:
    writer, image = ShardWriter(path.parent, {}, {"": 1}), torch.zeros(1, 3, 8, 8)
    writer.append(0, torch.ones(4, 1, 9), None, image, image)
    writer.flush()


WRITERS = {
    "record.safetensors": lambda path: record().save(path),
    "calibrator.safetensors": lambda path: fitted().save(path),
    "classifier.safetensors": lambda path: blend(small_network()).save(path),
    "weights.safetensors": lambda path: save_weights(small_network(), path),
    "checkpoint.pt": checkpoint,
    "results.json": lambda path: Results(tuple(many(2))).save(path),
    "report.html": lambda path: write_report(Results(tuple(many(2))), path),
    "graph.onnx": graph,
    "graph.pt2": graph,
    **{f"table{ending}": table for ending in (".csv", ".jsonl", ".parquet")},
    **{
        f"picture.{ending}": lambda path: picture(chart(), path)
        for ending in ("svg", "png", "pdf", "html", "json")
    },
    "run.json": lambda path: ShardWriter(path.parent, {"policy": "x" * 99}, {"": 1}).begin(4),
    "0000000000-0000000004.safetensors": shard,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_one_sentence_and_the_old_file_stays(name, tmp_path):
    path = tmp_path / name
    old = b"" if name == "run.json" else b"old"
    if old:
        path.write_bytes(old)
    with full(), pytest.raises(InputError) as caught:
        WRITERS[name](path)
    assert str(caught.value).startswith(f"{path} cannot be written: file too large")
    assert "\n" not in str(caught.value)
    left = [
        entry for entry in tmp_path.iterdir() if name == "run.json" or entry.name != "run.json"
    ]  # which a shard begins with
    assert [(entry, entry.read_bytes()) for entry in left] == ([(path, old)] if old else [])


def test_a_full_disk_leaves_the_classifier_that_is_in_the_folder(tmp_path):
    path, other = tmp_path / "c", blend(small_network(), limit=0.1)
    with full(), pytest.raises(InputError, match="cannot be written: file too large"):
        other.save(path)
    assert not list(tmp_path.iterdir())
    blend(small_network()).save(path)
    before = {file: file.read_bytes() for file in path.iterdir()}
    for size in (64, 700, 4000):  # no room for the first part, for some, for the description
        with full(size), pytest.raises(InputError, match="cannot be written: file too large"):
            other.save(path)
        assert {file: file.read_bytes() for file in path.iterdir()}.items() >= before.items()
    other.save(path)
    assert len(list(path.iterdir())) == 3


def test_a_full_disk_stops_a_cache_of_fits_with_a_sentence(tmp_path):
    fits = Fits({"a": record()}, tmp_path / "fits")
    with full(), pytest.raises(InputError, match="cannot be written: file too large"):
        fits.make([Fit("a", Rows(60, 30), VATTA(), "flip")])
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG]
)
def test_whatever_words_a_library_has_for_a_full_disk_they_become_one_sentence(number, tmp_path):
    class LibraryError(Exception):
        """As safetensors and pyarrow have them."""

    def wrapped() -> Exception:
        try:
            raise OSError(number, os.strerror(number))
        except OSError as error:
            outer = RuntimeError("unexpected pos 704 vs 598")
            outer.__context__ = error
            return outer

    expected = f"file cannot be written: {os.strerror(number).lower()}$"
    for error in (
        OSError(number, os.strerror(number)),
        LibraryError(f"I/O error: something (os error {number})"),
        LibraryError(f"while flushing: {os.strerror(number)}"),
        wrapped(),
    ):
        with pytest.raises(InputError, match=expected), whole_file(tmp_path / "file"):
            raise error
    assert not list(tmp_path.iterdir())


def test_an_error_that_is_not_the_disks_is_left_as_it_is(tmp_path):
    for error in (
        RuntimeError("os error 2"),
        FileNotFoundError(2, "No such file", "another"),
        InputError("no good"),
    ):
        with pytest.raises(type(error)) as caught, whole_file(tmp_path / "file"):
            raise error
        assert caught.value is error


def test_a_disk_that_fails_at_the_last_moment_keeps_the_old_file(tmp_path, monkeypatch):
    """Some file systems, such as NFS, report a full disk only when they flush."""
    path = tmp_path / "file"
    path.write_text("old")

    def fails(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(InputError, match="no space left on device"):
        write(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_content_is_on_the_disk_before_its_name_and_the_name_before_the_end(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        os,
        "fsync",
        lambda file: seen.append((str(Path(f"/proc/self/fd/{file}").readlink()), path.exists())),
    )
    path = tmp_path / "file"
    write(path)
    (part, there), last = seen
    assert part.endswith(".part/file")
    assert not there
    assert last == (str(tmp_path), True)


def test_a_folder_appears_whole(tmp_path):
    def made(stop: bool) -> None:
        with whole_folder(tmp_path / "folder") as folder:
            (folder / "a").write_text("a")
            assert not (tmp_path / "folder").exists()
            if stop:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made(stop=True)
    assert not list(tmp_path.iterdir())
    made(stop=False)
    assert [path.name for path in tmp_path.rglob("*")] == ["folder", "a"]


def test_a_digest_is_the_one_that_earlier_versions_wrote():
    words = {"b": 1, "a": "é\ud800"}
    said = '{"a": "é\ud800", "b": 1}\nx\nab'.encode("utf-8", "surrogatepass")
    assert digest(words, [("x", b"ab")]) == hashlib.sha256(said).hexdigest()
