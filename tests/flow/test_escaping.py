"""What comes from outside is shown as it is: no terminal obeys it, and no page takes it for Markdown or HTML."""

from __future__ import annotations

import io
import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, FlowRunFilter, FlowRunFilterName
from prefect.client.schemas.objects import Artifact

from commands import DATE, Watched, at_terminal
from forked import Done, forked, forked_light
from nightjar.flows.cli import tables
from nightjar.flows.cli.options import Terminal
from nightjar.flows.pages.escaping import code, line, markdown, visible
from nightjar.flows.serving.deploy import as_deployment
from nightjar.inference.history.run_tables import Incident, ShardLine
from nightjar.inference.job.file import parse_job
from service import client
from support import Lake

READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
"""Markdown with what GitHub added to it, with HTML and links of every kind: as Prefect's pages read it."""

READER.validateLink = lambda _: True  # type: ignore[method-assign]

TITLE = "\x1b]0;owned\x07"
"""Renames a terminal's window; everything that a terminal obeys would pass where this does."""

CLEAR = "\x1b[2J\x9b2J"
MARKUP = (
    "[l](javascript:alert(1)) ![i](http://evil/i.png) <img src=x onerror=alert(1)> **b** `c` | d | ~~e~~ &lt; _f_ \\"
)


def plain(tokens: list[Token]) -> str:
    """The text of inline tokens, if they are nothing else."""
    assert {token.type for token in tokens} <= {"text", "text_special"}, [token.type for token in tokens]
    return "".join(token.content for token in tokens)


def rendered(text: str) -> str:
    """What a reader sees of Markdown that is to be one paragraph of plain text."""
    tokens = READER.parse(text)
    if not tokens:
        return ""
    assert [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"], text
    return plain(tokens[1].children or [])


# ---- the functions ------------------------------------------------------------------------------------------

TEXT = st.text(st.sampled_from("ab1 *_`[]()<>&|~#+-=.!\\:/\n\r\t\x1b\u202e'\"") | st.characters(), max_size=30)


@given(TEXT)
@example("- list")
@example("1. list")
@example("---")
@example("# heading")
@example("_a_ __b__ c_d")
def test_markdown_shows_any_text_as_it_is(text: str) -> None:
    """Rendered, it is one paragraph that reads as the text did, on one line."""
    assert rendered(markdown(text)).strip() == line(text).strip()


@given(TEXT, TEXT)
def test_no_text_breaks_out_of_a_cell(text: str, copied: str) -> None:
    """Text and code in a table of Markdown stay in their cells."""
    table = READER.parse(f"| a | b |\n|---|---|\n| {markdown(text)} | {code(copied, cell=True)} |\n| c | d |")
    cells = [token.children or [] for token in table if token.type == "inline"]
    assert len(cells) == 6
    assert plain(cells[2]).strip() == line(text).strip()
    assert plain([*cells[4], *cells[5]]) == "cd"
    if line(copied).strip():
        (span,) = cells[3]
        assert (span.type, span.content.strip()) == ("code_inline", line(copied).strip())


@given(st.text())
def test_nothing_visible_is_obeyed(text: str) -> None:
    """Of control characters only breaks of lines and tabs are left; what was visible stays."""
    shown = visible(text)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]", shown)
    assert visible(shown) == shown
    assert text.isprintable() <= (shown == text)


@given(TEXT)
@example("/a|b/`c`")
def test_code_can_be_copied_from_the_page(text: str) -> None:
    """Outside a table nothing in it is escaped: a command with `a|b` in a path is that command."""
    inline = [child for token in READER.parse(f"x {code(text)} y") for child in token.children or []]
    if line(text).strip():
        assert [child.content.strip() for child in inline if child.type == "code_inline"] == [line(text).strip()]


@pytest.mark.parametrize("text", ["/data/dt=2026-01-01/part_01-a.parquet", "größe 東京.parquet", "nightjar run a.yaml"])
def test_ordinary_text_stays_as_it_can_be_copied(text: str) -> None:
    """Paths and commands are no longer than they were."""
    assert markdown(text) == visible(text) == text
    assert code(text) == f"`{text}`"


def test_the_terminal_shows_controls_and_keeps_its_own_colours() -> None:
    """Text, tables and JSON; what the console itself writes to colour them is left alone."""
    console = Terminal(file=io.StringIO(), force_terminal=True, width=200)
    console.print(f"file {TITLE}", style="bold red", highlight=False, markup=False)
    console.print_json(data={"file": TITLE, "c1": CLEAR})
    bad = f"{TITLE}{CLEAR}"
    incident = Incident(cause=bad, what_was_done=bad, message=bad, replay=bad, file=bad, row=1, attempt=1, shard=bad)
    console.print(tables.incidents([incident], 1, 20), highlight=False, markup=False)
    console.print(tables.shards([ShardLine(TITLE, TITLE, 1, TITLE, 1, 1, 1, 1.0, TITLE, TITLE, (TITLE,))], 1))
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[1;31m" in written
    assert r"\x1b]0;owned\x07" in written
    assert r"\u001b]0;owned\u0007" in written
    assert not re.search(r"[\x07\x9b]|\x1b(?!\[[\d;]*m)", written)


# ---- a run --------------------------------------------------------------------------------------------------

PRINTED = f"{TITLE}{CLEAR}{MARKUP}\nnightjar: published as #99"

HOSTILE = f'''
import sys


def score(batch):
    """Twice x; some rows are refused, with words that would do harm where they are obeyed; so it prints, too.

    In the command's own process it prints as any program does, so at a terminal it is decent.
    """
    print("scoring" if sys.stdout.isatty() else {PRINTED!r})
    if (batch["x"] % 500 == 7).any():
        raise ValueError({PRINTED!r})
    return {{"score": batch["x"] * 2}}
'''


@dataclass
class Hostile:
    """A lake whose names and errors are hostile, run and looked at from a terminal; then run with a damaged file."""

    lake: Lake
    exit_code: int
    written: str
    failed: Done


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory, api_env: dict[str, str]) -> Hostile:
    lake = Lake(tmp_path_factory.mktemp("hostile") / "a|b`c` <i>d [x](y) _e_ #1")
    lake.write_model(HOSTILE)
    lake.write_file(f"{TITLE}{CLEAR}\n<b>[n](javascript:n)_.parquet", 0, 1000)
    lake.write_job(name="hostile", retry__max_quarantined=0.1)
    code, written = at_terminal("run", lake.job_path, "--date", DATE, "--engine", "local", env=api_env, columns=300)
    written += at_terminal("show", lake.job_path, DATE, env={}, columns=300)[1]
    (lake.folder / "data" / f"{TITLE} **damaged** <b>.parquet").write_bytes(b"PAR1 \x1b[2J")
    night = ("--run-id", "hostile-x._y_", "--date", "2026-11-20")
    failed = forked("run", lake.job_path, *night, "--engine", "local", env=api_env)
    return Hostile(lake, code, written, failed)


def test_a_terminal_is_not_taken_over(hostile: Hostile) -> None:
    """Rich's own sequences are there, those of the names and errors are not."""
    assert hostile.exit_code == 0, hostile.written[-2000:]
    assert "published as #1" in hostile.written
    assert "\x1b[" in hostile.written
    assert "owned" in hostile.written
    assert not obeyed(hostile.written)


def test_what_a_model_prints_through_ray_takes_nothing_over(eventful_on_ray: Watched) -> None:
    """Not the terminal of the run, and not that of who reads its log, which has it in one line with each escape."""
    assert eventful_on_ray.exit_code == 0, eventful_on_ray.written[-2000:]
    assert not obeyed(eventful_on_ray.written)
    done = forked_light("logs", eventful_on_ray.lake.job_path, DATE, env={"COLUMNS": "300"})
    assert done.returncode == 0, done.stderr
    assert r"\x1b]0;owned\x07" in done.stdout
    assert done.stdout.replace("\n", "").isprintable()
    assert not re.search(r"^nightjar: published", done.stdout, re.MULTILINE)


def obeyed(written: str) -> list[str]:
    """The sequences of ours that a terminal would have obeyed."""
    return [sequence for sequence in ("\x1b]0;", "\x1b[2J", "\x9b", "\x07") if sequence in written]


def test_the_failed_run_names_the_file_visibly(hostile: Hostile) -> None:
    """On one line with its escapes written out; no line of it is the file's, beside what the model prints there."""
    assert hostile.failed.returncode == 1
    said = hostile.failed.stderr.replace(f"{PRINTED}\n", "")
    assert re.match(
        r"nightjar: 1 of 2 shards has no result; the first is \\x1b\]0;owned\\x07 \*\*damaged\*\* <b>\.parquet", said
    )
    assert said.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "words",
    [
        ["show", "RUN"],
        ["status", "RUN"],
        ["runs"],
        ["show", "RUN", "--json"],
        ["files"],
        ["logs", "RUN"],
        ["logs", "RUN", "--json"],
    ],
)
@pytest.mark.parametrize("run_id", [DATE, "hostile-x._y_"])
def test_every_command_that_looks_is_safe_to_look_at(hostile: Hostile, words: list[str], run_id: str) -> None:
    """Nothing but printable characters and breaks of lines, and no line that a message has made up."""
    given = [run_id if word == "RUN" else word for word in words[1:]]
    done = forked_light(words[0], hostile.lake.job_path, *given, env={"COLUMNS": "300"})
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert done.stdout.replace("\n", "").isprintable()
    assert not re.search(r"^nightjar: published", done.stdout, re.MULTILINE)
    if words == ["show", "RUN", "--json"] and run_id == DATE:
        message = json.loads(done.stdout)["incidents"][0]["message"]
        assert message.startswith(TITLE), "for machines it is as it was"


def artifacts(api: str, name: str) -> dict[str, Artifact]:
    """The artifacts of the flow run of this name, by key."""
    with client(api) as asked:
        (run,) = asked.read_flow_runs(flow_run_filter=FlowRunFilter(name=FlowRunFilterName(any_=[name])))
        chosen = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run.id]))
        return {str(artifact.key): artifact for artifact in asked.read_artifacts(artifact_filter=chosen)}


@pytest.fixture(scope="module")
def pages(hostile: Hostile, prefect_api: str) -> list[Artifact]:
    """Every artifact of both runs."""
    names = (f"hostile {DATE}", "hostile hostile-x._y_")
    return [artifact for name in names for artifact in artifacts(prefect_api, name).values()]


def test_cells_on_the_page_are_plain_text(pages: list[Artifact]) -> None:
    """Prefect's pages render each text in a table as Markdown, links and HTML included."""
    cells = []
    for artifact in pages:
        if artifact.type == "table":
            cells += [cell for row in json.loads(str(artifact.data)) for cell in row.values() if isinstance(cell, str)]
    shown = [rendered(cell) for cell in cells]
    assert all(text.isprintable() for text in shown)
    assert any(r"\x1b]0;owned\x07" in text and "![i](http://evil/i.png)" in text for text in shown)
    assert any("**damaged** <b>.parquet" in text for text in shown)


def test_the_summary_holds_no_markup_of_others(pages: list[Artifact]) -> None:
    """Its own table with paths as code, each as it is; nothing else."""
    tokens, spans = summary_of(pages, "published as #1")
    assert "a|b`c` <i>d [x](y) _e_ #1" in spans[0]
    assert Path(spans[0]).exists()
    assert len([token for token in tokens if token.type == "tr_open"]) == 13


def test_the_page_of_a_failed_run_holds_no_markup_of_others(hostile: Hostile, pages: list[Artifact]) -> None:
    """The reason as text, the commands as code that can be copied."""
    tokens, spans = summary_of(pages, "failed")
    types = [token.type for token in tokens]
    assert (types.count("tr_open"), types.count("list_item_open")) == (6, 0)
    look, repeat = (shlex.split(span) for span in spans)
    assert look[:3] == ["nightjar", "show", str(hostile.lake.job_path)]
    assert repeat[:3] == ["nightjar", "run", str(hostile.lake.job_path)]


def summary_of(pages: list[Artifact], state: str) -> tuple[list[Token], list[str]]:
    """The summary of the run in this state, read as Markdown: nothing in it but text and code, and the link to the
    report; and the code.
    """
    (page,) = (each for each in pages if each.key == "hostile-summary" and each.description == state)
    tokens = READER.parse(str(page.data))
    assert not [token for token in tokens if token.type in {"html_block", "fence", "code_block"}]
    inline = [child for token in tokens for child in token.children or []]
    ours = {"link_open", "link_close", "strong_open", "strong_close"}
    assert {child.type for child in inline} <= {"text", "code_inline", "text_special"} | ours
    (link,) = (unquote(str(child.attrs["href"])) for child in inline if child.type == "link_open")
    assert link.startswith("file://")
    assert Path(link.removeprefix("file://")).name == "report.html"
    assert Path(link.removeprefix("file://")).exists()
    return tokens, [child.content for child in inline if child.type == "code_inline"]


def test_a_deployments_description_holds_no_markup_of_the_job() -> None:
    """Prefect's page takes it for Markdown, and its places are the job's."""
    uri = "/lake/a` ![x](/evil/p.png) <b>`/"
    job = parse_job(
        {
            "name": "marked",
            "input": {"uri": uri},
            "model": {"uses": "m:f", "outputs": {"score": "float32"}},
            "output": {"uri": "/out"},
        },
        Path("/jobs/job.yaml"),
    )
    (inline,) = (t for t in READER.parse(str(as_deployment("/jobs/job.yaml", job, None).description)) if t.children)
    assert {child.type for child in inline.children or []} == {"text", "code_inline"}
    assert [child.content for child in inline.children or [] if child.type == "code_inline"] == [uri, "m:f", "/out"]


def test_descriptions_hold_no_markup_of_others(pages: list[Artifact]) -> None:
    """They are Markdown, too."""
    for artifact in pages:
        (inline,) = (token for token in READER.parse(str(artifact.description)) if token.type == "inline")
        assert {child.type for child in inline.children or []} <= {"text", "text_special", "code_inline"}
