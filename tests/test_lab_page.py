"""The HTML page and the pictures of a report: structure, safety, and how it works in a browser."""

import json
import math
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from discretegrad_lab.report import document
from discretegrad_lab.report.document import (
    Curve,
    Drawing,
    Figure,
    Page,
    Section,
    TextTable,
    Verdict,
)
from discretegrad_lab.report.html import DARK, LIGHT, MARKS, luminance, rgb, to_html, visible
from discretegrad_lab.report.plots import draw, limits, picture_grid

ROOT = Path(__file__).resolve().parents[1]
TEMPLATE = files("discretegrad_lab.report").joinpath("page.html").read_text("utf-8")
NAN, INF = math.nan, math.inf

# what a careless page would run, or take for its own parts
NASTY = (
    "</script><script>window.broken = 1</script>",
    "\"><img src=x onerror='window.broken = 1'>",
    "<!-- & &amp; <b> ' \u2028",
    "{{figures}} $& \\1 \\u003c",
)

EPOCHS = list(range(1, 41))
FALLING = [0.2 + 0.05 * math.exp(-x / 8) for x in EPOCHS]


def band(y, width=0.002):
    return {"low": [v - width for v in y], "high": [v + width for v in y]}


REINMAX = Curve("ReinMax", "#0072B2", EPOCHS, FALLING, **band(FALLING))
BROKEN = Curve(
    "ST", "#D55E00", EPOCHS, [NAN if x in (9, 11) or x > 30 else 0.25 for x in EPOCHS], dash="6 3"
)
SPARSE = Curve("test", "#888888", EPOCHS[9::10], FALLING[9::10], dash="2 3")
FIGURE = Figure(
    "Setting A", "Mean of *n* runs.", "epoch", "loss", (REINMAX, BROKEN, SPARSE), reference=0.2025
)


def plain(item):
    return to_html(Page("Title", "Text", (Section("Section", "", (item,)),)))


def nasty_page():
    script, quote, comment, marker = NASTY
    figure = Figure(
        script,
        quote,
        comment,
        marker,
        (
            Curve(script, "#0072B2", [1, 2, 3], [1.0, NAN, 2.0]),
            Curve(quote, "#000000", [1, NAN, 3], [INF, 1.0, -INF], [-1, -1, -1], [NAN, 2, 2]),
            Curve(comment, "#ffffff", [], []),
        ),
        log_y=True,
        reference=0.0,
        reference_name=quote,
    )
    table = TextTable(quote, script, NASTY, (NASTY, NASTY[::-1]), NASTY)
    claims = tuple(Verdict(text, quote, None, script) for text in NASTY)
    odd = [
        Figure("one point", "", "x", "y", (Curve("a", "#009E73", [3], [7.0]),)),
        Figure("no curve", "", "x", "y", ()),
        Figure("no number", "", "x", "y", (Curve("a", "#009E73", [1, 2], [NAN, INF]),)),
        Figure("far", "", "x", "y", (Curve("a", "#009E73", [0, 1e99], [1e-320, 1e99]),), True),
        Figure("huge", "", "x", "y", (Curve("a", "#009E73", [-1e99, 1e308], [-1e99, 1e99]),)),
        Figure("below", "", "x", "y", (Curve("a", "#009E73", [1, 2], [-1.0, -2.0]),), True),
    ]
    sections = [Section(text, text, (figure, table, *claims)) for text in NASTY]
    return Page(script, "\n\n".join(NASTY), (*sections, Section("Odd", "", tuple(odd))))


def useful_page():
    table = TextTable(
        "Table 2",
        "Train bound.",
        ("Estimator", "published", "ours", "verdict", "a heading that is not short"),
        (
            ("ReinMax", "98.37 ± 0.44", "98.40", "agrees", "words " * 12),
            ("ST", "112.63", "\N{EN DASH}", "no runs", "`discretegrad run`"),
        ),
        ("One run diverged.",),
    )
    claims = (
        Verdict("It converges.", "Figure 1", True, "0.2031"),
        Verdict("It does not.", "Figure 2", False, "0.2500"),
        Verdict("Nobody knows.", "Table 3", None, "no runs"),
    )
    falling = Figure(
        "A very long title of a figure, to see whether it is broken on a small screen",
        "",
        "epoch",
        "loss",
        tuple(Curve(f"curve {i}", "#0072B2", EPOCHS, FALLING) for i in range(9)),
        log_y=True,
    )
    svg = '<svg role="img" aria-label="Trees" viewBox="0 0 9 9"></svg>'
    drawing = Drawing("Trees", "The right one is beside it.", svg, "trees.svg")
    return Page(
        "Report",
        "First.\n\nSecond with `code`.",
        (
            Section("Polynomial", "", (*claims, FIGURE, falling)),
            Section("VAE", "Text.", (table, drawing)),
        ),
    )


class Reader(HTMLParser):
    """Elements with their attributes and texts; refuses what is not well nested."""

    VOID = frozenset({"meta", "link"})

    def __init__(self, text):
        super().__init__()
        self.elements, self.open = [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        assert len(dict(attributes)) == len(attributes), f"an attribute twice in {tag}"
        assert tag != "li" or self.open[-1][0] == "ul"
        element = (tag, dict(attributes), [])
        self.elements.append(element)
        if tag not in self.VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attributes):
        # in HTML only elements of a drawing may close themselves
        assert any(tag == "svg" for tag, _, _ in self.open)
        self.elements.append((tag, dict(attributes), []))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        for _, _, texts in self.open:
            texts.append(data)

    def of(self, tag, kind=None):
        return [
            (attributes, "".join(texts))
            for name, attributes, texts in self.elements
            if name == tag and kind in (None, attributes.get("class"))
        ]

    def texts(self, tag, kind=None):
        return [text for _, text in self.of(tag, kind)]


PAGES = {"useful": useful_page, "nasty": nasty_page}


@pytest.fixture(params=PAGES)
def page(request):
    return PAGES[request.param]()


def figures_of(page):
    return [item for s in page.sections for item in s.items if isinstance(item, Figure)]


def data_of(text):
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', text, re.S)
    # which cannot end the script element around it
    assert not re.search("[<>&]", found[1])
    return json.loads(found[1])


# structure


def test_everything_is_on_the_page_as_it_was_given(page):
    read = Reader(to_html(page))
    items = [item for section in page.sections for item in section.items]
    tables = [item for item in items if isinstance(item, TextTable)]
    claims = [item for item in items if isinstance(item, Verdict)]

    def words(text):
        return " ".join(document.printable(text).replace("`", "").split())

    def shown(tag, kind=None):
        return [words(text) for text in read.texts(tag, kind)]

    assert shown("h1") == [words(page.title)]
    assert shown("h2") == [words(section.heading) for section in page.sections]
    expected = [words(item.title) for item in items if not isinstance(item, Verdict)]
    assert [text for text in shown("h3") if text != "Claims"] == expected
    assert shown("h3").count("Claims") == sum(bool(s.verdicts) for s in page.sections)
    assert {words(part.strip()) for part in page.introduction.split("\n\n")} <= set(shown("p"))
    for table in tables:
        assert {words(cell) for row in table.rows for cell in row} <= {*shown("td"), *shown("th")}
        assert {words(note) for note in table.notes} <= set(shown("li"))
    assert shown("cite") == [words(claim.place) for claim in claims]
    assert shown("p", "evidence") == [words(claim.evidence) for claim in claims]
    legend = [words(curve.name) for figure in figures_of(page) for curve in figure.curves]
    assert shown("span", "name") == legend


def test_it_can_be_read_without_seeing_it(page):
    read = Reader(to_html(page))
    assert read.of("html")[0][0]["lang"] == "en"
    assert len(read.of("h1")) == len(read.of("main")) == 1
    assert all(attributes["aria-label"] for attributes, _ in read.of("table"))
    assert {attributes["scope"] for attributes, _ in read.of("th")} <= {"col", "row"}
    for attributes, _ in read.of("svg"):
        assert attributes.get("aria-hidden") == "true" or attributes["aria-label"]
    names = [attributes["id"] for _, attributes, _ in read.elements if "id" in attributes]
    assert len(set(names)) == len(names)
    for _, attributes, _ in read.elements:
        assert attributes.get("aria-labelledby", names[0]) in names
        assert attributes.get("href", "#").removeprefix("#") in ["", "data:,", *names]


def test_verdicts_are_words_and_signs_and_numbers_are_flush_right():
    read = Reader(to_html(useful_page()))
    verdicts = ["✓ holds", "✗ does not hold", "? undecided"]
    assert [" ".join(text.split()) for text in read.texts("p", "verdict")] == verdicts
    assert [len(read.of("li", kind)) for kind in ("holds", "does", "undecided")] == [1, 1, 1]
    assert read.texts("th", "number") == ["published", "ours"]
    assert read.texts("td", "number") == ["98.37 ± 0.44", "98.40", "112.63", "\N{EN DASH}"]


def test_nothing_becomes_part_of_the_page_or_refers_outside_of_it(page):
    text = to_html(page)
    assert text == to_html(page)
    read = Reader(text)
    assert (len(read.of("script")), len(read.of("img")), len(read.of("b"))) == (2, 0, 0)
    assert len(read.of("figure")) == len(figures_of(page)) == len(data_of(text))
    # the markers of the template stay what they are in a text
    headings = sum("{{figures}}" in section.heading for section in page.sections)
    assert sum("{{figures}}" in heading for heading in read.texts("h2")) == headings
    for tag, attributes, _ in read.elements:
        for name in ("src", "srcset", "action", "data", "poster", "xlink:href"):
            assert name not in attributes, f"{name} of {tag}"
        assert not any(name.startswith("on") for name in attributes)
        assert attributes.get("href", "#").startswith(("#", "data:,"))
        assert "url(" not in attributes.get("style", "")
    style, script = "".join(read.texts("style")), read.texts("script")[-1]
    assert not re.search(r"url\(|@import|@font-face", style)
    assert not re.search(r"fetch|XMLHttp|WebSocket|EventSource|sendBeacon|import|Worker", script)
    assert "//" not in re.sub(r"^\s*// .*$", "", TEMPLATE, flags=re.M)
    policy = next(a["content"] for a, _ in read.of("meta") if "http-equiv" in a)
    assert policy.startswith("default-src 'none';")


def test_what_is_not_finite_is_a_gap_in_the_data():
    curve = Curve("a", "#000000", [1, 2, 3], [NAN, INF, 1e101], [0, 1, 2], [-INF, 2, 3])
    (data,) = data_of(plain(Figure("", "", "", "", (curve,), reference=NAN)))
    (drawn,) = data["curves"]
    assert drawn["y"] == [None, None, None]
    assert drawn["high"] == [None, 2, 3]
    assert data["reference"] is None


def test_lines_that_hide_each_other_have_marks_of_their_own_and_dashed_ones_are_on_top(tmp_path):
    flat = [1.0] * 40
    colours_of = ("#0072B2", "#D55E00", "#009E73")
    curves = [
        Curve(f"{n}", colour, EPOCHS, flat, dash="6 3" if n == 0 else "", mark=n)
        for n, colour in enumerate(colours_of)
    ]
    figure = Figure("", "", "", "", tuple(curves))
    assert figure.drawn == [1, 2, 0]
    marks = [figure.marks(n) for n in range(3)]
    assert len({point for points in marks for point in points}) == sum(map(len, marks))
    assert all(5 <= len(points) <= 8 for points in marks)
    # also where there are fewer points than lines
    few = replace(figure, curves=tuple(replace(curves[0], x=[1, 2], y=[1, 1]) for _ in range(5)))
    assert [few.marks(n) for n in range(5)] == [[0], [1], [0], [1], [0]]
    none = replace(figure, curves=(replace(curves[0], x=[], y=[]),))
    assert none.marks(0) == []
    data = data_of(plain(figure))[0]
    assert [curve["marks"] for curve in data["curves"]] == marks
    legend = [attributes["d"] for attributes, _ in Reader(plain(figure)).of("path", "mark")]
    assert legend == [curve["shape"] for curve in data["curves"]] == list(MARKS[:3])
    # a picture shows all three colours, though the lines are the same
    draw([figure], tmp_path / "plot.png")
    pixels = colours(tmp_path / "plot.png")[:400]
    assert all((pixels == rgb(colour)).all(-1).sum() > 50 for colour in colours_of)


def test_the_legend_shows_the_last_value_and_where_it_is():
    read = Reader(plain(FIGURE))
    ends = list(zip(read.texts("span", "value"), read.texts("span", "interval"), strict=True))
    assert ends[0] == ("0.20034", "0.19834 to 0.20234")
    assert ends[1] == ("0.25000", "at 30")
    label = next(a["aria-label"] for a, _ in read.of("svg") if "aria-label" in a)
    assert label.startswith("Setting A. loss over epoch. Last values: ReinMax 0.20034; ST 0.25000")


def test_a_line_can_be_told_from_the_background():
    for colour in ("#0072B2", "#E69F00", "#000000", "#ffffff", "#14171b"):
        for ground in (LIGHT, DARK):
            dark, light = sorted(luminance(rgb(c)) for c in (visible(colour, ground), ground))
            assert (light + 0.05) / (dark + 0.05) >= 3
    # one that can be seen is not changed
    assert visible("#0072b2", LIGHT) == "#0072b2"
    assert luminance(rgb("#808080")) == pytest.approx(0.21586, abs=1e-5)
    assert f"--page: light-dark({LIGHT}, {DARK})" in TEMPLATE


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Curve("a", "red", [], []), r"expected a colour such as #0072b2, got 'red'"),
        (lambda: Curve("a", "#000000", [], [], dash='1"'), r"expected a dash"),
        (lambda: Curve("a", "#000000", [1], []), r"as many values of y as of x in 'a', got 0 and"),
        (lambda: Curve("a", "#000000", [1], [1], low=[1]), r"both ends of the interval of 'a'"),
        (lambda: Curve("a", "#000000", [1], [1], [1], []), r"as many values of high as of x"),
        (lambda: TextTable("t", "", ("a", "b"), (("1",),)), r"expected 2 cells in each row of 't'"),
        (lambda: draw([], "x.png"), r"expected at least one figure, got none"),
        (lambda: picture_grid([], "x.png"), r"expected rows of the same shape .* got no row"),
        (lambda: picture_grid([("a", torch.ones(2, 2))], "x.png"), r"got \(2, 2\)"),
    ],
)
def test_what_cannot_be_drawn_is_refused(make, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        make()
    assert not list(tmp_path.iterdir())


# in a browser

SCRIPTS = {path.name: path.read_text("utf-8") for path in (ROOT / "tests" / "browser").iterdir()}
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needs_browser = pytest.mark.skipif(
    BROWSER is None, reason="no browser: expected chromium, chromium-browser or google-chrome"
)


def browse(tmp_path, text, script, dark=False, width=1280):
    """What a script answers on the page, and what the page asked the network for."""
    ask = SCRIPTS["ask.html"].replace("SCRIPT", script)
    text = text.replace("<head>", "<head>" + SCRIPTS["watch.html"], 1)
    (tmp_path / "page.html").write_text(text.replace("</body>", ask + "</body>"), "utf-8")
    frame = SCRIPTS["frame.html"].replace("WIDTH", str(width))
    (tmp_path / "frame.html").write_text(frame, "utf-8")
    log = tmp_path / "net.json"
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
    options += ("--disable-background-networking", "--no-first-run", "--hide-scrollbars")
    done = subprocess.run(
        [
            BROWSER,
            *options,
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--window-size={width},900",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--log-net-log={log}",
            "--enable-logging=stderr",
            "--virtual-time-budget=2000",
            "--dump-dom",
            (tmp_path / ("page.html" if width >= 500 else "frame.html")).as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    found = re.search(r"<html[^>]*>", done.stdout)
    assert found, f"the browser gave no page: {done.stderr[-2000:]}"
    answer = json.loads(Reader(found[0] + "</html>").of("html")[0][0]["data-answer"])
    answer["console"] = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    # the browser has its own requests; those of the page carry the page as their origin
    answer["net"] = [
        event["params"]["url"]
        for event in json.loads(log.read_text())["events"]
        if event.get("params", {}).get("initiator", "not an origin") != "not an origin"
        and not event["params"]["url"].startswith("file:")
    ]
    return answer


QUIET = {"errors": [], "asked": [], "net": [], "console": [], "broken": None}


@needs_browser
@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize(("name", "dark"), [("useful", False), ("useful", True), ("nasty", False)])
def test_a_browser_draws_all_figures_in_both_themes_and_asks_for_nothing(
    tmp_path, name, dark, width
):
    page = PAGES[name]()
    seen = browse(tmp_path, to_html(page), SCRIPTS["look.js"], dark, width)
    assert {key: seen[key] for key in QUIET} == QUIET
    assert seen["drawn"] == len(figures_of(page))
    assert (seen["empty"], seen["numbers"], seen["dead"], seen["pictures"]) == (0, 0, 0, 0)

    def css(colour):
        return "rgb({:.0f}, {:.0f}, {:.0f})".format(*rgb(colour))

    assert seen["background"] == css(DARK if dark else LIGHT)
    assert seen["text"] == css("#e6e9ec" if dark else "#1b1f24")
    assert seen["ink"] == css(visible("#0072B2", DARK if dark else LIGHT))
    (how,) = seen["how"]
    assert all(word in how for word in ("zoom", "legend", "hide"))
    # a telephone scrolls down and not aside
    assert seen["wide"] <= seen["window"] <= width
    assert seen["unseen"] == []
    # what is wider than the screen says so, and nothing else: the table does, the drawing does not
    assert seen["cues"]
    assert all(hidden == fits for hidden, fits in seen["cues"])
    wanted = [[False, False], [True, True]]
    assert (name, width) != ("useful", 360) or seen["cues"] == wanted


AXES = [
    (0.1975, 0.2575, False, "0.20 0.21 0.22 0.23 0.24 0.25"),
    (-3.01, 3.01, False, "-3 -2 -1 0 1 2 3"),
    (0.899, 1.101, True, "0.90 0.95 1.00 1.05 1.10"),
    (1.9, 30.0, True, "2 5 10 20"),
    (0.0009, 40.0, True, "0.001 0.01 0.1 1 10"),
]
"""Ends of the vertical axis, and the numbers along it."""


def within(low, high, log):
    """What lies so far inside of such an axis as the page leaves free."""
    a, b = (math.log10(x) if log else x for x in (low, high))
    ends = a + (b - a) / 22, b - (b - a) / 22
    return [10**x if log else x for x in ends]


@needs_browser
def test_a_browser_draws_round_axes_gaps_and_intervals_where_they_are(tmp_path):
    y = [1.0, NAN, 2.0, 3.0, INF, 4.0, 5.0, 6.0]
    gaps = Curve("a", "#0072B2", list(range(8)), y, **band(y), dash="6 3")
    rising = Curve("a", "#0072B2", [0, 5000], [1.0, 100.0])
    below = Curve("a", "#0072B2", [0, 1], [1.0, 2.0], [-1.0, 1.0], [2.0, 4.0])
    figures = [
        Figure("", "", "", "", (gaps,)),
        Figure("", "", "", "", (rising,), log_y=True, reference=10.0),
        Figure("", "", "", "", (below,), log_y=True),
        *(
            Figure("", "", "", "", (Curve("a", "#0072B2", [0, 1], within(*axis[:3])),), axis[2])
            for axis in AXES
        ),
    ]
    page = Page("", "", (Section("", "", tuple(figures)),))
    seen = browse(tmp_path, to_html(page), SCRIPTS["drawn.js"])
    assert {key: seen[key] for key in QUIET} == QUIET
    # two lines and a lonely point; marks on some of its points
    assert [path.count("L") + 1 for path in seen["lines"][0]] == [2, 3]
    assert (seen["dots"][0], seen["marks"][0]) == (1, len(figures[0].marks(0)))
    assert [path.count("L") + 1 for path in seen["bands"][0]] == [2, 4, 6]
    # the reference lies halfway between 1 and 100
    (x0, y0), (x1, y1) = (map(float, p.split()) for p in seen["lines"][1][0][1:].split("L"))
    assert (x0, x1) == (56, seen["width"] - 12)
    level = float(re.match(r"M56 ([\d.]+)H", seen["reference"][0])[1])
    assert level == pytest.approx((y0 + y1) / 2, abs=0.1)
    # what a logarithm does not have lies below the axis
    heights = [float(point.split()[1]) for point in seen["bands"][2][0][1:-1].split("L")]
    assert heights[-1] > max(heights[:-1])
    assert limits(figures[2])[1][0] > 0.9
    for texts, (*_, expected) in zip(seen["texts"][3:], AXES, strict=True):
        numbers = [text for text in texts if text]
        assert " ".join(numbers[: len(expected.split())]) == expected


@needs_browser
def test_a_drawing_keeps_its_caption_and_wide_bands_do_not_stretch_an_axis(tmp_path):
    # with one interval of a hundred times what the lines cover
    curve = Curve(
        "a", "#0072B2", [0, 1, 2], [10.0, 11.0, 12.0], [9.0, -88, 11.5], [11.0, 110, 12.5]
    )
    drawing = Drawing("A picture", "What it shows.", '<svg width="2000" height="9"></svg>', "a.svg")
    figure = Figure("", "", "", "", (curve,))
    items = (figure, drawing, replace(drawing, svg=drawing.svg.replace("2000", "20")))
    page = to_html(Page("", "", (Section("", "", items),)))
    ask = """return {
      captions: all(".caption").map((caption) => caption.checkVisibility() && caption.innerText),
      cues: all(".cue").map((cue) => cue.checkVisibility() && cue.innerText),
      ticks: all(".plot text").map((text) => text.textContent) };"""
    seen = browse(tmp_path, page, ask)
    assert {key: seen[key] for key in QUIET} == QUIET
    assert [caption.split("\n")[0] for caption in seen["captions"]] == ["A picture"] * 2
    assert seen["cues"] == ["This drawing is wider than the screen: scroll it sideways →", False]
    numbers = [float(text) for text in seen["ticks"] if re.fullmatch(r"-?[\d.]+", text)]
    assert 5 < min(x for x in numbers if x > 2) < max(numbers) < 16
    assert limits(figure)[1] == pytest.approx((7.7, 14.3), abs=0.05)


@needs_browser
def test_the_policy_of_the_page_stops_requests(tmp_path):
    planted = plain(FIGURE).replace("<main>", '<main><img src="http://example.invalid/a.png">')
    seen = browse(tmp_path, planted, "return {};")
    assert "img-src" in seen["errors"]
    assert seen["net"] == []


@needs_browser
def test_curves_can_be_read_hidden_zoomed_and_put_on_a_logarithmic_axis(tmp_path):
    seen = browse(tmp_path, plain(FIGURE), SCRIPTS["react.js"])
    assert {key: seen[key] for key in QUIET} == QUIET
    end = [["0.20034", "0.19834 to 0.20234"], ["0.25000", "at 30"], ["0.20034", ""]]
    assert (seen["start"], seen["startAt"], seen["reset"]) == (end, "last value", True)

    at_20 = f"{FALLING[19]:.5f}"
    interval = f"{FALLING[19] - 0.002:.5f} to {FALLING[19] + 0.002:.5f}"
    assert (seen["hover"], seen["hoverAt"]) == (
        [[at_20, interval], ["0.25000", ""], [at_20, ""]],
        "epoch: 20",
    )
    # one of them is the lonely point between two gaps
    assert (seen["dots"], seen["cursor"]) == (4, 1)
    assert seen["between"][2] == [at_20, "at 20"]
    assert (seen["left"], seen["leftDots"]) == (end, 1)

    # ReinMax, two pieces of ST and the test curve
    assert (seen["lines"], seen["hidden"], seen["shown"]) == (4, 3, 4)
    assert seen["hiddenPressed"] == "false"

    assert seen["choice"] == 1
    numbers = [float(text) for text in seen["zoomed"] if re.fullmatch(r"[1-9][\d.]*", text)]
    assert numbers
    assert all(9.8 <= number <= 20 for number in numbers)
    assert (seen["zoomReset"], seen["zoomAt"]) == (False, "epoch: 10")
    assert (seen["restored"], seen["again"]) == (True, True)
    assert seen["both"] != seen["zoomed"]
    assert seen["touch"] == ["epoch: 10", True]

    assert (seen["log"], seen["linear"]) == ([True, "true"], [True, "false"])
    assert seen["keyAt"] == "epoch: 39"
    assert seen["spoken"].startswith("epoch: 39; ReinMax 0.20038 ")
    assert seen["escaped"] == "last value"
    light, dark = "rgb(255, 255, 255)", "rgb(20, 23, 27)"
    assert seen["theme"] == [light, dark, "light", light, "dark"]


# pictures


TINT = np.round(255 - 0.16 * (255 - np.array([0, 0x72, 0xB2])))
"""The colour of an interval around a blue line."""


def colours(path):
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"))


def test_a_plot_has_a_panel_for_each_figure_and_the_same_bytes_each_time(tmp_path):
    figures = figures_of(nasty_page())[-8:]
    draw(figures, tmp_path / "all.png")
    pixels = colours(tmp_path / "all.png")
    assert pixels.shape[1] == 3 * 630
    # no figure for the last panel
    assert (pixels[970:1380, 2 * 630 + 40 :] == 255).all()
    assert (pixels[970:1380, 630 + 40 : 2 * 630] < 255).any()
    for name in ("a", "b"):
        draw(figures[:1], tmp_path / f"{name}.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_a_plot_shows_lines_intervals_and_gaps(tmp_path):
    gap = [NAN if 10 < x < 30 else 0.25 for x in EPOCHS]
    figures = [
        Figure(r"$\no$ formula", "", "epoch", "$", (REINMAX,)),
        Figure("gap", "", "epoch", "loss", (Curve("ST", "#D55E00", EPOCHS, gap),)),
    ]
    draw(figures, tmp_path / "plot.png")
    panels = colours(tmp_path / "plot.png")[:400]  # above the legend
    blue, red = ((panels == rgb).all(-1) for rgb in ([0, 0x72, 0xB2], [0xD5, 0x5E, 0]))
    assert blue[:, :630].sum() > 500
    assert not blue[:, 630:].any()
    columns = np.flatnonzero(red.any(0))
    # half of the epochs are missing, in one stretch
    assert np.diff(columns).max() > 0.4 * (columns[-1] - columns[0])
    assert (abs(panels[:, :630] - TINT).max(-1) <= 1).sum() > 500


def test_pictures_stand_in_rows_with_their_grey_values(tmp_path):
    first = torch.zeros(3, 28, 28, requires_grad=True)
    second = torch.ones(3, 28, 28)
    second[1, 7, 9] = NAN
    rows = [("data", first), ("ReinMax", 0.5 * second), ("ST", second - 3)]
    for name in ("a", "b"):
        picture_grid(rows, tmp_path / f"{name}.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    pixels = colours(tmp_path / "a.png")
    # three dots a pixel; from the right: a margin of two, three pictures with two between them
    line = pixels[:, pixels.shape[1] - 3 * (2 + 14), 0]
    from_below = 3 * np.array([2 + 14, 2 + 30 + 14, 2 + 2 * 30 + 14])
    assert line[-from_below].tolist() == [0, 127, 0]
    assert line[-3 * (2 + 28 + 1)] == 255  # between the rows
    assert (pixels == [204, 0, 0]).all(-1).sum() == 2 * 3 * 3
