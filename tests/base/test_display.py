"""The line that says how far long work is."""

from atta._base import display
from atta._base.display import bar, counted


def test_it_counts_on_the_error_stream_with_or_without_a_known_end(capsys):
    for total, text in ((5, "5/5"), (None, "5/?")):
        with counted("reading", total, shown=True, done=2) as tell:
            tell(5)
        out, err = capsys.readouterr()
        assert "reading" in err
        assert text in err
        assert "images/s" in err
        assert not out


def test_it_says_nothing_unless_it_is_asked_to(capsys):
    with counted("reading", 5, shown=False) as tell:
        tell(5)
    assert capsys.readouterr() == ("", "")


def test_a_title_is_shown_as_it_is(capsys):
    with counted("{x} [bold]y[/]", 5, shown=True) as tell:
        tell(5)
    assert "{x} [bold]y[/]" in capsys.readouterr().err


def test_where_nobody_watches_a_line_says_now_and_then_how_far_it_is(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    with bar("fitting", 9, shown=True, transient=True) as tell:
        for step in range(1, 10):
            now[0] += 25
            tell(step, "v-atta")
    assert capsys.readouterr().err == "fitting 1/9 v-atta\nfitting 4/9 v-atta\nfitting 7/9 v-atta\n"


def test_what_is_over_within_the_minute_leaves_no_line_where_the_bar_would_go_away(capsys):
    with bar("fitting", 2, shown=True, transient=True) as tell:
        tell(2, "v-atta")
    assert capsys.readouterr() == ("", "")


def test_every_epoch_has_its_line(capsys):
    with bar("training", 2, shown=True, every=0.0) as tell:
        tell(1, "loss 2")
        tell(2, "loss 1")
    assert capsys.readouterr().err == "training 1/2 loss 2\ntraining 2/2 loss 1\n"
