"""Each format shows every cell with its verdict in words, and survives hostile names."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from farm import codec
from farm.errors import InvalidInput
from farm.judge.bands import KINDS
from farm.report import FORMATS, render, words, write_reports
from farm.report.matrix import Matrix, MatrixCell
from tests.report import sample

HOSTILE = (
    "<script>alert(1)</script>",
    '"onmouseover="x',
    "'; drop",
    "a\nb\tc\rd",
    "../../etc/passwd",
    "\u202eevil\u202c",
    "a|b`c``d",
    "@everyone #1 [x](javascript:alert(1))",
    "=HYPERLINK(1)",
    "\x00\x1b[31mred",
    "{{ 7*7 }}{% raw %}",
    "&lt;&amp;",
    "]]>",
    "模型 é 🤖",
    " ",
)
MATRIX = sample.sample()


def hostile(text: str) -> Matrix:
    """The sample's failing cell and its finding with `text` wherever a name or a message may stand."""
    cell = next(c for c in MATRIX.cells if c.cause == "FP16_RANGE")
    output = replace(cell.outputs[0], name=text, message=text, kind_source=text, input_set=text, metrics={text: 1.0})
    bad = replace(
        cell, model=text, device=text, gpu=text, signature=text, adapter=text, gpu_api=text, message=text,
        cpu_ops=(text,), outputs=(output,), input_sets=(text,), notes=(text,), log_tail=text,
        known={"verdict": text, "link": text},
    )  # fmt: skip
    return replace(
        MATRIX,
        devices=(replace(MATRIX.devices[0], id=text, gpu=text, driver=text, facts={text: text}),),
        cells=(bad,),
        findings=(replace(MATRIX.findings[0], model=text, headline=text, explanation=text, remedy_text=text),),
        known_problems=(text,),
        precision_classes=({"device": text, "runtime": text, "config": text, "value": text, "evidence": text},),
    )


class Shape(HTMLParser):
    """The tags of a page, their ids and links, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, ...]] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.append(tuple(name for name, _ in attrs))
        values = dict(attrs)
        self.ids += [values["id"] or ""] if "id" in values else []
        self.links += [values[name] or "" for name in ("href", "src") if name in values]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def rows(matrix: Matrix) -> list[MatrixCell]:
    return list(matrix.cells)


@pytest.mark.parametrize("fmt", FORMATS)
def test_every_format_renders_and_repeats(fmt: str) -> None:
    assert render(MATRIX, fmt) == render(MATRIX, fmt)


def test_an_unknown_format_is_refused_with_the_list() -> None:
    with pytest.raises(InvalidInput, match="choose from terminal"):
        render(MATRIX, "pdf")


def test_reports_are_written_and_matrix_json_reads_back(tmp_path: Path) -> None:
    write_reports(MATRIX, tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"matrix.json", "report.html", "report.md", "junit.xml"}
    assert codec.from_json((tmp_path / "run" / "matrix.json").read_bytes(), Matrix) == MATRIX


# --- terminal -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [60, 80, 120])
def test_terminal_stays_within_its_width(width: int) -> None:
    wide = [line for line in render(MATRIX, "terminal", width=width).splitlines() if len(line) > width]
    # Links and lines to paste must stay whole, or they cannot be copied.
    assert [line for line in wide if "http" not in line and not line.startswith("    ")] == []


def test_terminal_shows_as_many_cells_as_planned() -> None:
    text = render(MATRIX, "terminal", width=200)
    for verdict in words.VERDICTS:
        planned = sum(c.verdict == verdict for c in MATRIX.cells)
        assert text.count(f"{words.SYMBOLS[verdict]} {words.label(verdict)} ") == planned, verdict


def test_colour_changes_nothing_but_escape_codes() -> None:
    coloured = render(MATRIX, "terminal", colour=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == render(MATRIX, "terminal")


def test_terminal_says_why_a_cell_has_no_answer_once_for_all_cells_of_that_reason() -> None:
    lost = [replace(c, verdict="infra", outputs=[], message="the link broke") for c in MATRIX.cells]
    text = " ".join(render(replace(MATRIX, cells=lost, findings=[]), "terminal", width=200).split())
    errors = {c.error.message for c in lost if c.error}
    assert text.count("infra: the link broke. [") == 1
    assert all(" ".join(message.split()) in text for message in errors)


def test_terminal_is_plain_unless_asked() -> None:
    assert "\x1b" not in render(MATRIX, "terminal")


def test_partial_delegation_is_visible_in_the_cell() -> None:
    for fmt in ("terminal", "markdown", "html"):
        assert "partial GPU" in render(MATRIX, fmt), fmt


def test_latency_is_relative_to_the_devices_own_cpu() -> None:
    cell = next(c for c in MATRIX.cells if c.id == sample.cell_id("lvp", "pose", "gpu"))
    # 9.5 ms on gpu, 42 ms on cpu.
    assert words.relative_latency(cell, words.cpu_latencies(MATRIX)) == pytest.approx(9.5 / 42)


def test_a_phones_finding_is_shown_in_kotlin_and_a_desktops_in_python() -> None:
    text = render(MATRIX, "terminal")
    assert "kotlin:\n" in text
    assert "python:\n" in text


# --- counting -----------------------------------------------------------------------------------------------------


def test_summary_counts_neither_diagnostics_nor_known_results() -> None:
    tally, known, diagnostic = words.counts(MATRIX)
    assert sum(tally.values()) + known + diagnostic == len(MATRIX.cells)
    assert (known, diagnostic) == (1, 20)
    # By hand from the sample: embedder gpu, pose gpu and gpu-fp32; the known one and cpu-fp16 are left out.
    assert tally["fail"] == 3
    assert words.summary(MATRIX).endswith("Exit code 1: at least one counted cell failed, broke an expectation, or "
                                          "ended in an error.")  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "metrics", "text"),
    [
        ("values", {"snr_db": 38.4, "cosine": 0.9}, "38 dB"),
        ("embedding", {"snr_db": 38.4, "min_row_cosine": 0.99912}, "cos 0.9991"),
        ("mask", {"snr_db": 3.0, "max_abs": 0.0312}, "|d| 0.031"),
        ("classification", {"snr_db": 3.0, "top1": 1.0}, "top-1 1"),
        ("quantised", {"max_steps": 2.0, "cosine": 0.9}, "2 steps"),
        ("bools", {"equal_share": 0.9991}, "0.9991 equal"),
        ("values", {"snr_db": 999.0, "equal_share": 1.0}, "equal"),
        ("values", {"max_abs": 0.5}, "|d| 0.5"),
        ("values", {}, ""),
    ],
)
def test_a_cell_shows_the_metric_its_kind_is_judged_by(kind: str, metrics: dict[str, float], text: str) -> None:
    assert words.short_metric(replace(MATRIX.cells[0].outputs[0], kind=kind, metrics=metrics)) == text


def test_every_kind_of_the_judge_has_a_short_metric() -> None:
    for kind in KINDS:
        output = replace(MATRIX.cells[0].outputs[0], kind=kind, metrics=dict.fromkeys(words._SHORT_METRICS, 0.5))
        assert words.short_metric(output) == words._SHORT_METRICS[words._METRIC_OF_KIND[kind]].format(0.5)


@pytest.mark.parametrize(
    ("ms", "text"), [(0.00579, "5.79 µs"), (0.25, "0.25 ms"), (9.54321, "9.54 ms"), (170.4, "170 ms")]
)
def test_times_keep_three_digits(ms: float, text: str) -> None:
    assert words.milliseconds(ms) == text


# --- junit --------------------------------------------------------------------------------------------------------


def test_junit_maps_verdicts_and_counts_match_its_elements() -> None:
    root = ET.fromstring(render(MATRIX, "junit"))
    cases = list(root.iter("testcase"))
    assert len(cases) == len(MATRIX.cells)
    for tag, counter in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        assert len(list(root.iter(tag))) == int(root.get(counter, "-1"))
    expected = {"fail": "failure", "error": "error", "infra": "error", "inconclusive": "error",
                "unsupported": "skipped", "not_run": "skipped", "pass": None, "warn": None}  # fmt: skip
    ordered = [c for device in sample.DEVICES for c in MATRIX.cells if c.device == device]
    for case, cell in zip(cases, ordered, strict=True):
        got = next((child.tag for child in case if child.tag != "system-out"), None)
        want = expected[cell.verdict]
        if want and (cell.diagnostic or cell.known):
            want = "skipped"
        assert got == want, cell.id
        if got:
            assert case[0].get("message"), cell.id


# --- csv ----------------------------------------------------------------------------------------------------------


def test_csv_has_a_row_per_output_and_one_for_a_cell_without() -> None:
    table = list(csv.DictReader(io.StringIO(render(MATRIX, "csv"))))
    assert len(table) == sum(max(1, len(c.outputs)) for c in MATRIX.cells)
    assert {(r["device"], r["model"], r["config"], r["verdict"]) for r in table} == {
        (c.device, c.model, c.config, c.verdict) for c in MATRIX.cells
    }


def test_csv_never_starts_a_formula() -> None:
    for row in csv.DictReader(io.StringIO(render(hostile("=cmd()"), "csv"))):
        assert row["model"] == "'=cmd()"


# --- markdown -----------------------------------------------------------------------------------------------------


def unescaped_pipes(line: str) -> int:
    return len(re.findall(r"(?<!\\)\|", line))


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_tables_keep_their_columns(text: str) -> None:
    lines = [line for line in render(hostile(text), "markdown").splitlines() if line.startswith("|")]
    tables = [n for n, line in enumerate(lines) if line.startswith("| ---")]
    assert len(tables) == 2
    for start, end in zip(tables, [*(n - 1 for n in tables[1:]), len(lines)], strict=True):
        assert {unescaped_pipes(line) for line in lines[start - 1 : end]} == {unescaped_pipes(lines[start])}


def rendered(matrix: Matrix) -> Shape:
    """The page a Markdown renderer that allows HTML makes of the report; code spans, which are harmless, left out."""
    shape = Shape(MarkdownIt("commonmark").enable("table").render(render(matrix, "markdown")))
    shape.tags = [tag for tag in shape.tags if tag != "code"]
    return shape


@pytest.mark.parametrize("text", [text for text in HOSTILE if text.strip()])
def test_markdown_lets_no_markup_through(text: str) -> None:
    shape = rendered(hostile(text))
    assert shape.tags == rendered(hostile("name")).tags
    assert not [link for link in shape.links if not link.startswith("https://github.com/")]


def test_markdown_pings_nobody() -> None:
    # GitHub reads mentions from the rendered text outside code.
    page = MarkdownIt("commonmark").enable("table").render(render(hostile("@everyone"), "markdown"))
    assert "@" not in re.sub("<code.*?</code>", "", page)


# --- html ---------------------------------------------------------------------------------------------------------


def test_html_links_every_cell_to_its_evidence() -> None:
    shape = Shape(render(MATRIX, "html"))
    assert len(shape.ids) == len(set(shape.ids))
    targets = [link[1:] for link in shape.links if link.startswith("#")]
    assert set(targets) <= set(shape.ids)
    assert {f"c{n}" for n in range(len(MATRIX.cells))} <= set(targets)


def test_html_loads_nothing() -> None:
    page = render(MATRIX, "html")
    assert "default-src 'none'" in page
    assert not {"link", "img", "iframe", "object", "embed", "base"} & set(Shape(page).tags)
    assert "src=" not in page.partition("<body>")[0]
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


def test_html_states_the_limits_of_its_evidence() -> None:
    page = " ".join(Shape(render(MATRIX, "html")).text)
    for words_of in (
        "shell process, not from an app",
        "Synthetic inputs",
        "no evidence for iPhones",
        "synthetic inputs",
    ):
        assert words_of in page


def test_a_known_link_that_is_no_web_address_is_text_only() -> None:
    links = Shape(render(hostile("javascript:alert(1)"), "html")).links
    assert not [link for link in links if "javascript" in link]


def benign() -> Shape:
    return Shape(render(hostile("name"), "html"))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_change_no_element_of_the_page(text: str) -> None:
    shape = Shape(render(hostile(text), "html"))
    assert (shape.tags, shape.attributes) == (benign().tags, benign().attributes)


@settings(max_examples=40, deadline=None)
@given(
    st.text(
        st.one_of(st.sampled_from("<>\"'&{}|`\n\r\t\x00\x1b\u202e\u2066\u2028=@[]()#-"), st.characters()),
        min_size=1,
        max_size=30,
    ).filter(str.strip)
)
def test_any_name_survives_every_format(text: str) -> None:
    matrix = hostile(text)
    shape = Shape(render(matrix, "html"))
    assert (shape.tags, shape.attributes) == (benign().tags, benign().attributes)
    assert rendered(matrix).tags == rendered(hostile("name")).tags
    assert len(list(ET.fromstring(render(matrix, "junit")).iter("testcase"))) == 1
    assert len(list(csv.DictReader(io.StringIO(render(matrix, "csv"))))) == 1
    assert codec.from_json(render(matrix, "json").encode(), Matrix) == matrix
    for fmt in ("terminal", "markdown", "html", "junit", "csv"):
        bad = {
            c for c in render(matrix, fmt) if unicodedata.category(c) in ("Cc", "Cf", "Cs") and c not in "\n\t\r\u200d"
        }
        assert not bad, (fmt, bad)


def test_a_right_to_left_override_becomes_visible() -> None:
    page = render(hostile("\u202eexe.tflite"), "html")
    assert "\u202e" not in page
    assert "\\u202eexe.tflite" in page


def test_a_known_entry_without_a_link_is_shown() -> None:
    cell = replace(MATRIX.cells[0], known={"verdict": "fail"})
    assert "Known: fail" in render(replace(MATRIX, cells=(cell,), findings=()), "html")


def luminance(colour: str) -> float:
    """Relative luminance of #rgb or #rrggbb (WCAG 2.2)."""
    digits = colour[1:] if len(colour) == 7 else "".join(c * 2 for c in colour[1:])
    parts = [int(digits[n : n + 2], 16) / 255 for n in (0, 2, 4)]
    r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_colours_reach_aa_contrast(scheme: int) -> None:
    page = render(MATRIX, "html")
    block = re.findall(r":root\{(.*?)\}", page, re.DOTALL)[scheme]
    colour = dict(re.findall(r"--([\w-]+):(#\w+)", block))
    pairs = [(name, f"{name}-b") for name in ("pass", "warn", "fail", "grey", "ask", "infra")]
    pairs += [(text, ground) for text in ("fg", "soft", "link") for ground in ("bg", "card")]
    for text, ground in pairs:
        high, low = sorted((luminance(colour[text]), luminance(colour[ground])), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 4.5, (text, ground)


def test_thousands_of_cells_stay_a_page() -> None:
    cells = tuple(replace(c, id=f"{n}-{c.id}", model=f"{c.model}{n}") for n in range(60) for c in MATRIX.cells)
    page = render(replace(MATRIX, cells=cells), "html")
    assert 'class="many"' in page
    assert len(page) / len(cells) < 3500
