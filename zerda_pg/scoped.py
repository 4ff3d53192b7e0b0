"""A scope of the store: each method hands an operation to the driver.

`AsyncMemory` runs the same methods on an async driver, whose `run` is awaited.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

from zerda_pg.core import Core
from zerda_pg.driver import SyncDriver
from zerda_pg.entry import MemoryEntry, MemoryType
from zerda_pg.filters import Filter
from zerda_pg.operations import (
    contexts,
    curating,
    exporting,
    forgetting,
    importing,
    listing,
    recalling,
    watching,
    writing,
)
from zerda_pg.operations.contexts import PackingOptions
from zerda_pg.operations.lines import Source
from zerda_pg.operations.search_options import SearchOptions, options_of
from zerda_pg.operations.writing import Progress
from zerda_pg.results import AddResult, Change, Context, Hits, Neighbour, Page
from zerda_pg.scope import Scope
from zerda_pg.scoring.forgetting import ForgettingConfig
from zerda_pg.scoring.packing import Policy
from zerda_pg.scoring.signals import Ranker
from zerda_pg.steps import Steps
from zerda_pg.tokens import TokenCounter

__all__ = ["Memory"]

P = ParamSpec("P")
T = TypeVar("T")


class Memory:
    """The memories of a scope; thread-safe, holds no connection."""

    def __init__(self, core: Core, driver: SyncDriver, scope: Scope) -> None:
        self._core = core
        self._driver = driver.within(scope.tenant_id)
        self.scope = scope

    @property
    def count_tokens(self) -> TokenCounter:
        """The store's token counter."""
        return self._core.count_tokens

    def perform(
        self,
        operation: Callable[Concatenate[Core, Scope, P], Steps[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Perform an operation in this scope: what the layers of `zerda_pg.memory` build on.

        Args:
            operation: From `zerda_pg.operations`.
            args: Its arguments after the core and the scope.
            kwargs: Its keyword arguments.
        """
        return self._driver.run(operation(self._core, self.scope, *args, **kwargs))

    def add(
        self,
        content: Any,
        *,
        id: str | None = None,
        kind: str | None = None,
        memory_type: MemoryType | str = "semantic",
        importance: float = 0.5,
        tags: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        session_id: str | None = None,
        user_id: str | None = None,
        agent_id: str | None = None,
        timestamp: float | datetime | None = None,
        valid_from: datetime | None = None,
        expires_at: datetime | timedelta | None = None,
        embedding: Sequence[float] | None = None,
        supersedes: str | Sequence[str] = (),
        language: str | None = None,
        if_exists: Literal["replace", "keep", "error"] = "replace",
        dedupe: bool = False,
    ) -> AddResult:
        """Write one memory: entry, state, vector and edges, all or none.

        Args:
            content: Any JSON value, or a `MemoryEntry`, on which the rest is then set.
            id: Default: a new UUIDv7.
            kind: `decision`, `fact`, `preference`, `failure`, `attempt` or any other word.
            memory_type: A `MemoryType` or its name.
            importance: In [0, 1].
            tags: Labels to filter by.
            metadata: Any JSON object; an `id` in it is data like the rest.
            session_id: Default: the scope's.
            user_id: Default: the scope's, which it must be if there is one.
            agent_id: Default: the scope's.
            timestamp: When it happened; default now.
            valid_from: From when it is true, which hides it until then; default: always.
            expires_at: A moment or a time to live, after which it is hidden.
            embedding: (d,) a vector of the recorded model; default: made from the content.
            supersedes: Ids of entries that this one replaces, closed in the same transaction as
                of `valid_from`, else `timestamp`; also where it was there (`kept`, `duplicate`).
            language: Text-search configuration; default: the store's.
            if_exists: What to do if the id exists.
            dedupe: Whether an active entry of the same normalised content, tenant, user, agent,
                session, type and kind, and true at the same time, is kept instead.

        Returns:
            What was found: `created`, `replaced`, `kept` or `duplicate`.

        Raises:
            InvalidContentError: If text or JSON cannot be stored; nothing is written.
            ValueError: Naming the argument that is wrong.
            AlreadyExistsError: With `if_exists="error"`, or for an id of another user's memory.
            NotFoundError: If an entry to supersede is not there.
            AccessDeniedError: If it is everyone's and the scope is a user's.
            ConflictError: If it has itself replaced the entry, which is kept.
        """
        given = {
            "id": id, "kind": kind, "memory_type": memory_type, "importance": importance,
            "tags": tags, "metadata": metadata, "session_id": session_id, "user_id": user_id,
            "agent_id": agent_id, "timestamp": timestamp, "valid_from": valid_from,
            "expires_at": expires_at, "embedding": embedding, "supersedes": supersedes,
            "language": language,
        }  # fmt: skip
        return self._driver.run(
            writing.add(
                self._core, self.scope, content, if_exists=if_exists, dedupe=dedupe, given=given
            )
        )

    def add_many(
        self,
        items: Iterable[MemoryEntry | Mapping[str, Any]],
        *,
        if_exists: Literal["replace", "keep", "error"] = "replace",
        dedupe: bool = False,
        progress: Progress | None = None,
    ) -> list[AddResult]:
        """Write many memories, in batches that are each all or nothing.

        Args:
            items: Entries, or mappings with `content` and `add`'s names; may be a generator.
            if_exists: As in `add`; `keep` resumes what was interrupted.
            dedupe: As in `add`, also within the items.
            progress: Called with how many are done, and how many there are if known.

        Returns:
            In the order given.

        Raises:
            InvalidContentError: Naming the item; its batch is not written, earlier ones are.
            ValueError: Naming the item and the field.
        """
        return self._driver.run(
            writing.add_many(
                self._core,
                self.scope,
                items,
                if_exists=if_exists,
                dedupe=dedupe,
                progress=progress,
            )
        )

    def add_messages(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        session_id: str,
        user_id: str | None = None,
        progress: Progress | None = None,
    ) -> list[AddResult]:
        """Write a conversation as episodic entries, each linked to the next by `precedes`.

        A message's id is derived from session, time, speaker, text and its occurrence in the
        call: writing the same conversation again, whole, adds nothing, and keeps a repeated "ok".
        Where each turn is a call of its own, give every message a `timestamp` or an `id`: a
        second "ok" without one is taken for the first.

        Args:
            messages: With `speaker` or `role`, `text` or `content`, and perhaps `timestamp` (a
                datetime, or ISO 8601 with an offset).
            session_id: The conversation.
            user_id: Whose memory it is.
            progress: Called with how many are done, and how many there are if known.

        Returns:
            In the order given; `kept` for those that were there.

        Raises:
            InvalidContentError: Naming the message; its batch is not written.
            ValueError: Naming the message and the field.
        """
        return self._driver.run(
            writing.add_messages(
                self._core,
                self.scope,
                messages,
                session_id=session_id,
                user_id=user_id,
                progress=progress,
            )
        )

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        vectors: bool = False,
        resume: bool = False,
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Write all that the scope sees to a JSON Lines file, as of one moment.

        Entries of any status with every field, kept versions, edges, memberships in layers and
        what sessions touched. `import_file` brings them back as they were. Memory is bounded,
        and the file appears when it is whole.

        Args:
            path: The file, replaced if it exists; compressed where it ends in `.gz`.
            vectors: Whether the vectors come along; else they are made again on import.
            resume: Whether what is written stays when it is interrupted, as `NAME.partial`, and
                a call after that goes on from there. The file shows the moment at which the
                last of the calls began: what was changed or deleted since is read again.
            progress: Called with how many rows are written; their total is not known.

        Returns:
            `path`, `bytes`, rows by table, whether `vectors` are in it, and `resumed`: how many
            rows an interrupted call had written.

        Raises:
            ConflictError: If another call with `resume` is writing this file.
            OSError: If the file cannot be written.
        """
        return self._driver.run(
            exporting.export(
                self._core, self.scope, path, vectors=vectors, resume=resume, progress=progress
            )
        )

    def import_file(
        self,
        path: Source,
        *,
        if_exists: Literal["replace", "keep", "error"] = "keep",
        dedupe: bool = False,
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Write the memories of a JSON Lines file, `.gz` or not, in bounded memory.

        A line is an entry with `content` and `add`'s names, or a chat message with `session`,
        `speaker` or `role`, `text` or `content`, and perhaps `timestamp`: an episodic entry,
        linked to the next of its session by `precedes`. A line without an `id` has one derived
        from what it says, so that a second run adds nothing.

        A file of `export` is restored as it was, in whatever tenant; entries that are there are
        left alone, so that a second run goes on where the first one stopped. Its vectors are
        taken if they are of this store's model, else made from the texts (`embedded` counts).

        Args:
            path: A path, or a file open for reading bytes.
            if_exists: As in `add`; `keep` resumes what was interrupted.
            dedupe: As in `add`.
            progress: Called with how many lines are done, and how many there are if known.

        Returns:
            `lines`, `created`, `replaced`, `kept`, `duplicate`, `failed`, and `errors`: the
            first hundred bad lines, each with `line` and `error`. The good ones are written.

        Raises:
            OSError: If the file cannot be read.
        """
        return self._driver.run(
            importing.import_file(
                self._core,
                self.scope,
                path,
                if_exists=if_exists,
                dedupe=dedupe,
                progress=progress,
            )
        )

    def get(self, id: str) -> MemoryEntry | None:
        """One entry, of any status; None if it is not there, has expired or is another user's."""
        return self._driver.run(listing.get(self.scope, id))

    def get_many(self, ids: Sequence[str]) -> list[MemoryEntry | None]:
        """Entries in the order asked, None where there is none."""
        return self._driver.run(listing.get_many(self.scope, ids))

    def update(self, /, id: str, *, if_version: int | None = None, **changes: Any) -> MemoryEntry:
        """Correct an entry; the version before it is kept for `known_at`.

        Args:
            id: The entry.
            if_version: Only if it is still at this version.
            changes: New values, by `add`'s names, and `valid_to`; `metadata` replaces. Changed
                content is embedded and indexed again in the same transaction.

        Raises:
            NotFoundError: If it is not there.
            AccessDeniedError: If it is everyone's and the scope is a user's.
            ConflictError: If it is not at `if_version`.
            InvalidContentError: If text or JSON cannot be stored; nothing is written.
            ValueError: Naming what cannot be changed or is wrong.
        """
        return self._driver.run(curating.update(self._core, self.scope, id, if_version, changes))

    def delete(self, id: str) -> bool:
        """Remove an entry and all that hangs on it; False if the scope has no such entry."""
        return self._driver.run(curating.delete(self.scope, id))

    def discard(self, id: str) -> bool:
        """Hide an entry until `restore`; False if the scope has no such entry."""
        return self._driver.run(curating.discard(self.scope, id))

    def restore(self, id: str) -> bool:
        """Bring a discarded entry back to what it was; False if the scope has no such entry."""
        return self._driver.run(curating.restore(self.scope, id))

    def clear(self) -> bool:
        """Erase every entry of the scope (of a user's scope: that user's); False if none."""
        return self._driver.run(curating.clear(self.scope))

    def purge(
        self,
        *,
        ids: Sequence[str] | str | None = None,
        user_id: str | None = None,
        session_id: str | None = None,
        status: str | None = None,
        expired: bool = False,
        before: datetime | None = None,
    ) -> dict[str, int]:
        """Erase what meets every criterion given, from every table.

        Returns:
            Erased rows by table.

        Raises:
            ValueError: If there is no criterion, or one is wrong.
        """
        return self._driver.run(
            curating.purge(
                self.scope,
                ids=ids,
                user_id=user_id,
                session_id=session_id,
                status=status,
                expired=expired,
                before=before,
            )
        )

    def relate(
        self, source_id: str, target_id: str, relation: str = "related", *, weight: float = 1.0
    ) -> None:
        """Link two entries; a second time sets the weight.

        Raises:
            NotFoundError: If either is not there.
            AccessDeniedError: If both are everyone's and the scope is a user's.
            ValueError: Naming the argument that is wrong.
        """
        return self._driver.run(curating.relate(self.scope, source_id, target_id, relation, weight))

    def unrelate(self, source_id: str, target_id: str, relation: str = "related") -> bool:
        """Remove a link; False if it was not there."""
        return self._driver.run(curating.unrelate(self.scope, source_id, target_id, relation))

    def neighbours(
        self, id: str, *, depth: int = 1, relations: Sequence[str] | None = None
    ) -> list[Neighbour]:
        """Entries reached over edges, either way, nearest first.

        Args:
            id: Where to start.
            depth: Most edges on the way.
            relations: Only these; None: all.

        Raises:
            NotFoundError: If there is no such entry.
        """
        return self._driver.run(curating.neighbours(self.scope, id, depth, relations))

    def invalidate(
        self, id: str, *, by: str | None = None, at: datetime | None = None
    ) -> MemoryEntry:
        """Mark an entry superseded.

        Args:
            id: What is no longer true.
            by: What replaced it; linked by `invalidated_by`.
            at: From when; default now.

        Raises:
            NotFoundError: If either is not there.
            AccessDeniedError: If the entry is everyone's and the scope is a user's.
            ConflictError: If the entry has itself replaced `by`.
        """
        return self._driver.run(curating.invalidate(self.scope, id, by, at))

    def search(
        self,
        query: str,
        *,
        k: int = 10,
        mode: Literal["hybrid", "dense", "lexical"] = "hybrid",
        min_score: float = 0.0,
        filter: Filter | Mapping[str, Any] | None = None,
        valid_at: datetime | None = None,
        known_at: datetime | None = None,
        now: datetime | None = None,
        current_session: str | None = None,
        embedding: Sequence[float] | None = None,
        record_access: bool = True,
        ranker: Ranker | str = "default",
    ) -> Hits:
        """The k memories that fit a query best.

        Args:
            query: What to look for, in plain words.
            k: Most hits.
            mode: By meaning and words, by meaning alone, or by words alone.
            min_score: Least score, in [0, 1].
            filter: Which entries to consider.
            valid_at: What was true then.
            known_at: What was known then.
            now: The clock; default: the server's.
            current_session: What this session touched ranks higher; it filters nothing.
            embedding: (d,) the query's vector; default: made from the query.
            record_access: Whether the hits' access counts rise.
            ranker: `default`, `composite`, `fusion`, `kind_prior` or an object.

        Raises:
            InvalidContentError: If the query is empty or no text.
            ValueError: Naming the argument that is wrong.
            EmbeddingModelError: If the model cannot be loaded.
        """
        options = SearchOptions(
            k=k,
            mode=mode,
            min_score=min_score,
            filter=filter,
            valid_at=valid_at,
            known_at=known_at,
            now=now,
            current_session=current_session,
            embedding=embedding,
            record_access=record_access,
            ranker=ranker,
        )
        return self._driver.run(recalling.search(self._core, self.scope, query, options))

    def search_many(self, /, queries: Sequence[str], **same: Any) -> list[Hits]:
        """`search` for several queries at once, with `search`'s other arguments."""
        options = options_of("search_many", ("queries",), same)
        return self._driver.run(recalling.search_many(self._core, self.scope, queries, options))

    def build_context(
        self,
        /,
        task: str,
        *,
        token_budget: int = 3000,
        top_k: int | None = None,
        ranker: Ranker | str = "default",
        packing: Policy = "value",
        render: str | Callable[[Sequence[MemoryEntry]], str] = "transcript",
        count_tokens: str | TokenCounter | None = None,
        **search: Any,
    ) -> Context:
        """The memories worth their place in a prompt for a task, as text.

        Args:
            task: What the agent is about to do.
            token_budget: Greatest number of tokens of the text.
            top_k: Most memories; None: `k` where that is given, else as many as fit.
            ranker: `default`, `composite`, `fusion`, `kind_prior` or an object.
            packing: `value` (score against length), `skip`, `stop` or `optimal`.
            render: `transcript`, `sections`, `plain`, or a function from entries to text.
            count_tokens: Default: the store's counter.
            search: `search`'s other arguments.

        Raises:
            InvalidContentError: If the task is empty or no text.
            ValueError: Naming the argument that is wrong.
        """
        own = "task token_budget top_k packing render count_tokens".split()
        options = options_of("build_context", own, {"ranker": ranker} | search)
        wanted = PackingOptions(
            token_budget=token_budget,
            top_k=options.k if top_k is None and "k" in search else top_k,
            packing=packing,
            render=render,
            count_tokens=count_tokens,
        )
        return self._driver.run(
            contexts.build_context(self._core, self.scope, task, options, wanted)
        )

    def explain(self, /, task: str, *, id: str | None = None, **same: Any) -> dict[str, Any]:
        """How a search comes about, as data.

        Args:
            task: The query.
            id: An entry: why it did or did not come up.
            same: `search`'s other arguments.
        """
        options = options_of("explain", ("task", "id"), {"record_access": False} | same)
        return self._driver.run(
            contexts.explain(self._core, self.scope, task, options, entry_id=id)
        )

    def entries(
        self,
        *,
        filter: Filter | Mapping[str, Any] | None = None,
        order: Literal["newest", "oldest"] = "newest",
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page:
        """One page of entries by the time they happened; stable while others write.

        Args:
            filter: Which entries; default: active ones.
            order: `newest` or `oldest` first.
            limit: Most entries, up to 1,000.
            cursor: `next_cursor` of the page before.

        Raises:
            ValueError: Naming the argument that is wrong.
        """
        return self._driver.run(listing.entries(self.scope, filter, order, limit, cursor))

    def count(self, filter: Filter | Mapping[str, Any] | None = None) -> int:
        """How many entries the filter admits; default: active ones."""
        return self._driver.run(listing.count(self.scope, filter))

    def forget(
        self, config: ForgettingConfig | None = None, *, dry_run: bool = False
    ) -> dict[str, Any]:
        """Let unused memories fade, and discard those that have faded away.

        Args:
            config: Rates and thresholds.
            dry_run: Only report what would be.

        Returns:
            Counts, and the ids that were (or would be) discarded.
        """
        return self._driver.run(forgetting.forget(self.scope, config, dry_run=dry_run))

    def enable_changes(self, enabled: bool = True) -> str | None:
        """Switch the tenant's change feed on, or off; it is off unless switched on.

        Off erases what it recorded. Every write then costs a row more; the rows hold ids and
        times, no content, and `maintain` erases them after 7 days.

        Returns:
            The position as of now, to `watch` from; None where the feed is off.

        Raises:
            ValueError: If the scope has a user: the feed is the whole tenant's.
        """
        return self._driver.run(watching.enable_changes(self.scope, enabled))

    def watch(
        self,
        *,
        since: str | None = None,
        timeout: float | None = None,
        poll_interval: float = 0.5,
    ) -> Iterator[Change]:
        """Every committed change of the tenant, made by any process, as it comes.

        Each comes at least once; after a change come only such as were committed later, or
        overlapped it. The server is asked every so often, no connection is held in between, and
        a server that is away is waited for up to a minute.

        Args:
            since: The `position` of the last change that was dealt with; None: from the oldest
                that is kept.
            timeout: Seconds without a change after which it ends; None: never.
            poll_interval: Seconds between looks where there was nothing.

        Raises:
            ConfigError: If the feed is off, or `since` is older than what is kept, or of another
                feed or database.
            ValueError: Naming the argument that is wrong.
        """
        return self._driver.follow(
            watching.Feed(self.scope, since=since, timeout=timeout, poll_interval=poll_interval)
        )

    def stats(self) -> dict[str, Any]:
        """Counts by type, kind and status, bytes, model and index kind."""
        return self._driver.run(listing.stats(self._core, self.scope))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.scope})"
