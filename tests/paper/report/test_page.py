"""The page as text: self-contained, complete, honest about what is missing, and safe with any text in the results."""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from jinja2 import UndefinedError

from paper.report.made_up import make_up
from twofold.paper import NAMES, published, write
from twofold.paper.judge import judge
from twofold.paper.report import chapters, page, verdicts
from twofold.paper.report.endpoints import Head, Line, end_points
from twofold.paper.report.slips import SLIPS
from twofold.report import figures, markup, sheet, words

TESTS = Path(__file__).parents[2]


class Reader(HTMLParser):
    """Every start tag, the text of scripts and styles, and all other text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.raw: list[tuple[str, dict[str, str | None], str]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "wbr"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] in ("script", "style"):
            self.raw.append((self._open[-1], self.tags[-1][1], data))
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words))

    @property
    def data(self) -> dict[str, Any]:
        return json.loads(next(text for tag, attributes, text in self.raw if attributes.get("id") == "data"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_up(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def html(folder: Path) -> str:
    path = write(folder)
    assert path == folder / "report.html"
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def reader(html: str) -> Reader:
    return Reader(html)


# --- self-contained ---------------------------------------------------------------------------------------------------


def test_nothing_points_out_of_the_page(reader: Reader) -> None:
    for tag, attributes in reader.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "audio", "video", "source", "form")
        assert "src" not in attributes
        assert attributes.get("href", "#").startswith("#")
        assert not [name for name in attributes if name.startswith("on")]
    styles = "".join(text for tag, _, text in reader.raw if tag == "style")
    assert "url(" not in styles
    assert "@import" not in styles
    ours = [text for tag, attributes, text in reader.raw if tag == "script" and "plotly.js v" not in text[:200]]
    assert len(ours) == 2  # the data and page.js
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", ours[1])
    assert not re.search(r"fetch\(|XMLHttpRequest|innerHTML|eval\(", ours[1])


def test_the_policy_forbids_every_request_and_every_other_script(reader: Reader) -> None:
    policy = next(a["content"] for t, a in reader.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    run = [text for tag, attributes, text in reader.raw if tag == "script" and "type" not in attributes]
    assert len(run) == 2
    for script in run:
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy


def test_links_inside_the_page_lead_somewhere(reader: Reader) -> None:
    names = [a["id"] for _, a in reader.tags if "id" in a]
    assert len(names) == len(set(names))
    assert {str(a["href"])[1:] for tag, a in reader.tags if tag == "a"} <= set(names)


def test_the_same_results_give_the_same_page(folder: Path, html: str) -> None:
    assert page.page(folder) == html
    assert not list(folder.glob("*.part"))


# --- complete ---------------------------------------------------------------------------------------------------------


def test_every_claim_has_its_verdict(folder: Path, reader: Reader) -> None:
    found = judge(folder)
    assert len(found) >= 9
    assert found == verdicts.judged(page.read(folder)[0])
    for verdict in found:
        for told in (verdict.claim, verdict.because, verdict.rule):
            assert unescape(re.sub("<[^>]*>", "", verdicts.named(told))) in reader.text
        assert verdicts.word(verdict.verdict, False) in reader.text


def test_a_quick_run_decides_nothing(tmp_path: Path) -> None:
    make_up(tmp_path, only=("mx2",))
    document = json.loads((tmp_path / "mx2.json").read_text())
    decided = Reader(page.page(tmp_path)).text
    document["settings"]["quick"] = True
    (tmp_path / "mx2.json").write_text(json.dumps(document))
    quick = Reader(page.page(tmp_path)).text
    assert "Quick runs, which decide nothing: mx2" in quick
    assert quick.count("not enough data") > decided.count("not enough data")


def test_every_series_is_in_the_data_with_its_ends(folder: Path, reader: Reader) -> None:
    data = reader.data
    for name in ("mx2", "images", "pw", "rates"):
        series = json.loads((folder / f"{name}.json").read_text())["series"]
        drawn = {json.dumps(s["at"], sort_keys=True): s for s in data["figures"][name]["series"]}
        assert len(drawn) == len(series)
        for s in series:
            found = drawn[json.dumps(figures.at(s), sort_keys=True)]
            mean = data["pool"][found["mean"]]
            assert len(mean) == len(s["mean"])
            assert mean[0] == pytest.approx(s["mean"][0], rel=1e-4)
            axes = {"condition"} if name == "rates" else {"rounds", "bytes", "gradients_w", "gradients_beta"}
            assert set(found["x"]) == axes
            if "optimum" in s:  # a gap of 1e-9 survives
                assert data["pool"][found["gap"]][-1] == pytest.approx(s["mean"][-1] - s["optimum"], rel=1e-4)


def test_published_end_points_stand_beside_ours(reader: Reader) -> None:
    text = reader.text
    for point in published.points("mx2"):
        assert f"paper {point['value']:.4g}" in text
    assert "earlier version of the authors' code" in text
    assert "paper 238" in text  # seconds
    drawn = reader.data["figures"]["mx2"]["published"]
    assert len(drawn) == 15
    assert drawn[0]["gap"] == pytest.approx(drawn[0]["value"] - 0.2771, abs=1e-4)


def test_each_figure_has_its_command_its_seeds_and_its_settings(folder: Path, reader: Reader) -> None:
    for name in ("mx2", "images", "pw", "times", "rates"):
        assert f"twofold reproduce {name} --out {folder}" in reader.text
    assert "0 to 29" in reader.text
    assert "made up for mx2" in reader.text
    assert "no file at all" in reader.text
    assert "eta = 0.25, tau = 5" in reader.text


def test_optima_have_twelve_digits(folder: Path, tmp_path: Path) -> None:
    document = json.loads((folder / "mx2.json").read_text())
    for series in document["series"]:
        if "optimum" in series:
            series["optimum"] = 0.123456789012345
    (tmp_path / "mx2.json").write_text(json.dumps(document))
    assert "0.123456789012" in page.page(tmp_path)


def test_the_environment_is_told(reader: Reader) -> None:
    assert "0.10.2" in reader.text
    assert "3.11.7" in reader.text


def test_every_slip_is_listed_and_its_tests_exist(reader: Reader) -> None:
    text = "".join(reader.words)
    written = {
        node.name
        for path in TESTS.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    for slip in SLIPS:
        assert unescape(re.sub("<[^>]*>", "", markup.rich(slip.effect))) in text
        assert slip.evidence or slip.tests
        assert set(slip.tests) <= written
    listed = {test for slip in SLIPS for test in slip.tests}
    assert {name for name in written if name.startswith("test_slip_")} <= listed


def test_every_experiment_has_a_chapter() -> None:
    assert [chapter.name for chapter in chapters.CHAPTERS] == list(NAMES)


# --- what is missing --------------------------------------------------------------------------------------------------


def test_a_missing_experiment_is_named_with_its_command(folder: Path, reader: Reader) -> None:
    assert reader.text.count("This experiment is not in the folder.") == 5
    for name in ("ews", "reparam", "relaxation", "hybrid", "slips"):
        assert f"twofold reproduce {name} --out {folder}" in reader.text


def test_an_empty_folder_still_makes_a_page(tmp_path: Path) -> None:
    reader = Reader(write(tmp_path).read_text(encoding="utf-8"))
    assert reader.text.count("This experiment is not in the folder.") == len(NAMES)
    assert "not enough data" in reader.text
    assert reader.data == {"figures": {}, "pool": []}


def test_a_folder_with_a_space_is_quoted(tmp_path: Path) -> None:
    folder = tmp_path / "my results"
    folder.mkdir()
    assert f"twofold reproduce mx2 --out '{folder}'" in Reader(page.page(folder)).text


def test_no_folder_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"There is no folder .*nowhere.*reproduce all"):
        write(tmp_path / "nowhere")


@pytest.mark.parametrize("content", ["{", "[]", '{"series": 3}', "null", ""])
def test_a_file_that_is_no_result_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "pw.json").write_text(content)
    text = Reader(page.page(tmp_path)).text
    assert "pw.json" in text
    assert "twofold reproduce pw" in text


def test_missing_series_and_fields_do_not_break_the_page(tmp_path: Path) -> None:
    make_up(tmp_path, only=("mx2",))
    document = json.loads((tmp_path / "mx2.json").read_text())
    kept = [s for s in document["series"] if s["metric"] == "loss" and s["level"] != 0.3][:3]
    del kept[0]["bytes"], kept[0]["stderr"], kept[0]["variant"], kept[0]["optimum"]
    kept[1] |= {"mean": [None if i > 50 else v for i, v in enumerate(kept[1]["mean"])], "diverged": 7}
    kept[2] |= {"mean": [], "rounds": []}
    (tmp_path / "mx2.json").write_text(json.dumps({"series": kept}))
    reader = Reader(page.page(tmp_path))
    assert "7 of 30 diverged" in reader.text
    assert len(reader.data["figures"]["mx2"]["series"]) == 2


def test_a_document_without_series_says_so(tmp_path: Path) -> None:
    (tmp_path / "ews.json").write_text('{"experiment": "ews", "series": []}')
    assert "There is no series to show." in Reader(page.page(tmp_path)).text


def test_an_unknown_experiment_is_shown_too(tmp_path: Path) -> None:
    make_up(tmp_path, only=("mx2",))
    (tmp_path / "mx2.json").rename(tmp_path / "mine.json")
    reader = Reader(page.page(tmp_path))
    assert "mine" in reader.data["figures"]
    assert "mine" in [a.get("id") for _, a in reader.tags]


def test_nan_in_a_document_is_a_gap_in_the_curve(tmp_path: Path) -> None:
    make_up(tmp_path, only=("pw",))
    document = json.loads((tmp_path / "pw.json").read_text())
    document["series"][0]["mean"][3] = float("nan")
    (tmp_path / "pw.json").write_text(json.dumps(document))
    assert None in Reader(page.page(tmp_path)).data["pool"][1] + Reader(page.page(tmp_path)).data["pool"][0]


# --- any text ---------------------------------------------------------------------------------------------------------


def test_text_from_results_is_escaped(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><b onclick='x'>&amp;"
    make_up(tmp_path, only=("pw",))
    document = json.loads((tmp_path / "pw.json").read_text())
    for series in document["series"]:
        series |= {"method": evil, "dataset": evil + series["dataset"], "variant": evil, "objective": evil}
    document |= {"environment": {evil: {evil: evil}}}
    document["settings"] |= {"command": evil, "facts": {evil: evil}, "data": [evil]}
    (tmp_path / "pw.json").write_text(json.dumps(document))
    html = page.page(tmp_path)
    assert evil not in html
    reader = Reader(html)  # every tag is closed where it should be
    assert len([tag for tag, _ in reader.tags if tag == "script"]) == 3
    assert reader.data["figures"]["pw"]["series"][0]["at"]["method"] == evil
    assert evil in reader.text


@pytest.mark.parametrize(
    "plain, html",
    [
        ("a < b", "a &lt; b"),
        ("`L^w`", '<span class="m">L<sup>w</sup></span>'),
        ("`M^(-1/2)`", '<span class="m">M<sup>-1/2</sup></span>'),
        ("`∇_β f_m` and p_w", '<span class="m">∇<sub>β</sub> f<sub>m</sub></span> and p_w'),
        ("`μ'`", '<span class="m">μ&#39;</span>'),
        ("a lone ` stays", "a lone ` stays"),
        ("`x` and `", '<span class="m">x</span> and `'),
    ],
)
def test_formulas(plain: str, html: str) -> None:
    assert markup.rich(plain) == html


def test_scripts_stand_alone_too() -> None:
    assert markup.scripts("σ_h = 0.1 & √(L^w/μ)") == "σ<sub>h</sub> = 0.1 &amp; √(L<sup>w</sup>/μ)"


def test_a_template_escapes_what_it_is_given_and_refuses_to_guess() -> None:
    made = markup.templates().from_string('<a href="#{{ x }}">{{ x }}</a>')
    assert made.render(x='"><b>') == '<a href="#&#34;&gt;&lt;b&gt;">&#34;&gt;&lt;b&gt;</a>'
    with pytest.raises(UndefinedError, match="'x' is undefined"):
        made.render()


# --- figures ----------------------------------------------------------------------------------------------------------


def test_levels_are_named_after_their_data() -> None:
    hybrid = chapters.KNOWN["hybrid"]
    assert words.title("level", 5.0, hybrid, "synthetic") == "σ_h = 5"
    assert words.title("level", 2, hybrid, "mnist") == "K = 2"
    assert words.title("level", "theory", chapters.KNOWN["pw"], "mnist") == "p_w = theory’s"
    assert words.title("dataset", "my_own_data") == "my own data"


def test_arrays_are_kept_once() -> None:
    pool = figures.Pool()
    assert [pool.add(values) for values in ([1, 2], [1.5, None], [1, 2])] == [0, 1, 0]
    assert pool.arrays == [[1, 2], [1.5, None]]


def test_known_values_come_first_and_numbers_by_size() -> None:
    series = [{"method": m, "level": v, "variant": "by theory"} for m, v in (("new", 10), ("lsgd", 2), ("asvrcd", 0.5))]
    values = figures.distinct(chapters.KNOWN["mx2"], series)
    assert values["method"] == ["lsgd", "asvrcd", "new"]
    assert values["level"] == [0.5, 2, 10]
    assert values["metric"] == []


def test_end_points_of_several_problems_have_their_own_columns() -> None:
    common = {"method": "ascd", "variant": "by theory", "metric": "loss", "mean": [1.0, 0.5]}
    series = [
        {**common, "objective": "mixture", "dataset": "synthetic", "level": 0.1, "optimum": 0.25},
        {**common, "objective": "mixture", "dataset": "synthetic", "level": 0.3},
        {**common, "objective": "mixture", "dataset": "mnist", "level": 2},
    ]
    table = end_points(chapters.KNOWN["hybrid"], series, [])
    assert [row.heads for row in table.rows if isinstance(row, Head)] == [["σ_h = 0.1", "σ_h = 0.3"], ["K = 2"]]
    lines = [row for row in table.rows if isinstance(row, Line)]
    assert [(row.name, [cell.value for cell in row.cells]) for row in lines] == [
        ("ASCD", ["0.5", "0.5"]), ("optimum", ["0.25", "–"]), ("ASCD", ["0.5"]),
    ]  # fmt: skip
    assert (table.width, table.count, table.open) == (2, 3, True)


# --- colours ----------------------------------------------------------------------------------------------------------


def _luminance(colour: str) -> float:
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_text_and_lines_stand_out_in_both_schemes() -> None:
    style = Path(sheet.__file__).with_name("page.css").read_text(encoding="utf-8")
    light, dark = (
        dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block)) for block in re.findall(r":root \{(.*?)\}", style, re.S)
    )
    for scheme in (light, {**light, **dark}):
        for ink in ("ink", "quiet", "accent"):
            for ground in ("paper", "card", "wash"):
                assert _contrast(scheme[ink], scheme[ground]) >= 4.5, (ink, ground)
        for word in ("holds", "part", "fails", "open"):
            assert _contrast(scheme[word], scheme[f"{word}-wash"]) >= 4.5, word
        for name in scheme:
            if name.startswith("c-"):
                assert _contrast(scheme[name], scheme["card"]) >= 2.5, name  # lines also differ in dash
