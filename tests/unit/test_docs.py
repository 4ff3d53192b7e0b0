"""What is documented is there, and what is there is documented."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import zerda_pg.cli
from zerda_pg.cli.application import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]

GROUP: Any = typer.main.get_command(app)

SHARED = ("Which memories", "How to search", "Common options")
"""Sections of docs/command.md for the options that commands share."""


def sections() -> dict[str, str]:
    """Heading → text up to the next one, of docs/command.md."""
    text = (ROOT / "docs" / "command.md").read_text()
    parts = re.split(r"^#{2,3} (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def section_of(command: str) -> str:
    """The section of a command, with those that it refers to."""
    found = sections()
    own = [text for heading, text in found.items() if heading.startswith(f"`zerda-pg {command}")]
    assert len(own) == 1, f"docs/command.md has no section `zerda-pg {command} …`"
    shared = [
        found[name] for name in SHARED
        if name == "Common options" or f"[{name.lower()}]" in own[0]
    ]  # fmt: skip
    return "\n".join([*own, *shared])


@pytest.mark.parametrize("command", sorted(GROUP.commands))
def test_every_command_and_option_is_documented(command: str) -> None:
    text = section_of(command)
    heading = next(h for h in sections() if h.startswith(f"`zerda-pg {command}"))
    assert GROUP.commands[command].help, f"{command} has no help"
    for parameter in GROUP.commands[command].params:
        if parameter.param_type_name == "argument":
            assert parameter.name.upper() in heading, f"{command}: {parameter.name}"
        elif parameter.name != "help":
            option = parameter.opts[0]
            assert re.search(rf"`{re.escape(option)}[ `]", text), f"{command}: {option}"
            assert parameter.help, f"{command} {option} has no help"


def test_no_option_is_documented_that_is_not_there() -> None:
    known = {o for c in GROUP.commands.values() for p in c.params for o in p.opts}
    known |= {o for p in GROUP.params for o in p.opts} | {"--help", "-h"}
    for text in sections().values():
        rows = re.findall(r"^\| `(-[^ `]+)", text, flags=re.MULTILINE)
        assert set(rows) <= known
    documented = {
        heading.removeprefix("`zerda-pg ").rstrip("`").split(" ")[0]
        for heading in sections()
        if heading.startswith("`zerda-pg ")
    }
    assert documented == set(GROUP.commands)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_use_commands_and_options_that_exist(page: Path) -> None:
    for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL):
        for line in re.findall(r"zerda-pg ([a-z].*?)(?:\||#|&&|$)", block, flags=re.MULTILINE):
            name, *words = line.split()
            assert name in GROUP.commands, line
            options = {o for p in GROUP.commands[name].params for o in p.opts}
            plain = re.sub(r"\"[^\"]*\"", "", " ".join(words)).split()
            assert {w for w in plain if re.match(r"--?[a-z]", w)} <= options, line


def variables_of_the_code() -> set[str]:
    """Every name of an environment variable of ours in the package and in docker-compose.yml."""
    files = [*(ROOT / "zerda_pg").rglob("*.py"), ROOT / "docker-compose.yml"]
    pattern = re.compile(r"\b(?:ZERDA_PG|MEMORY_RERANK|MEMORY_RECENCY|XDG)_[A-Z_]*[A-Z]\b")
    return {name for file in files for name in pattern.findall(file.read_text())}


def test_every_environment_variable_is_documented() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    documented = set(re.findall(r"^\| `([A-Z_]+)` \|", text, flags=re.MULTILINE))
    found = variables_of_the_code()
    assert "ZERDA_PG_URL" in found
    assert documented - {"NO_COLOR"} == found


def test_every_extra_is_documented() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "docs" / "configuration.md").read_text()
    for extra in project["optional-dependencies"]:
        assert f"`{extra}`" in text, extra


def links() -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
            if not target.startswith(("http:", "https:")):
                yield page, target


def slugs(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    ("page", "target"),
    list(links()),
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_links_lead_somewhere(page: Path, target: str) -> None:
    path, _, anchor = target.partition("#")
    file = page if not path else (page.parent / path).resolve()
    assert file.is_file(), f"{page.name} links to {target}"
    if anchor:
        assert anchor in slugs(file), f"{page.name} links to {target}"


def test_every_page_is_reachable_from_the_readme() -> None:
    reached, todo = set[Path](), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        for source, target in links():
            if source == page and target.partition("#")[0]:
                todo.append((source.parent / target.partition("#")[0]).resolve())
    assert {page.name for page in PAGES} <= {page.name for page in reached}


def test_the_readme_has_the_two_commands_of_a_fresh_clone() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert (
        sum(line.startswith("python3 ") and line.endswith("zerda-pg demo") for line in lines) == 1
    )
    assert sum(line.startswith("python3 ") and line.endswith("pytest") for line in lines) == 1


def test_the_package_exports_what_the_pages_import() -> None:
    for page in PAGES:
        for names in re.findall(r"^from zerda_pg import (.+)$", page.read_text(), re.MULTILINE):
            for name in names.split(","):
                assert hasattr(zerda_pg, name.strip()), f"{page.name}: {name}"
