"""One data set for every system: tenants of Zipf sizes, clustered vectors, realistic texts.

Kept free of zerda_pg, since the peers' process, which has other libraries, reads it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

DIMENSIONS = 384
CLUSTERS = 200
SPREAD = 0.6
"""Of a vector around its cluster's centre, against a centre of unit variance: clustered vectors,
as sentences give them, and not uniform noise, in which every neighbour is as good as another."""

VOCABULARY = 20_000
WORDS = 40
"""Of an entry: about 230 characters."""

QUERY_WORDS = 8


@dataclass(frozen=True, kw_only=True)
class Data:
    """Entries, row by row, and queries."""

    tenants: list[str]
    """(n) of each entry."""
    texts: list[str]
    vectors: NDArray[np.float32]
    """(n, 384) unit norm."""
    query_tenants: list[str]
    query_texts: list[str]
    query_vectors: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.texts)

    def rows_of(self) -> dict[str, list[int]]:
        """Row numbers by tenant."""
        rows: dict[str, list[int]] = {}
        for row, tenant in enumerate(self.tenants):
            rows.setdefault(tenant, []).append(row)
        return rows


def make(entries: int, tenants: int, queries: int, *, exponent: float = 1.0, seed: int = 7) -> Data:
    """Make a data set; the same for the same arguments.

    Args:
        entries: About how many, in all.
        tenants: Of sizes that fall by Zipf's law.
        queries: Each in the tenant of a random entry.
        exponent: Of Zipf's law: a greater one makes the largest tenants larger.
        seed: Of the random numbers.
    """
    random = np.random.default_rng(seed)
    shares = 1.0 / np.arange(1, tenants + 1) ** exponent
    sizes = np.maximum(1, np.floor(shares / shares.sum() * entries)).astype(int)
    owners = np.repeat(np.arange(tenants), sizes)
    centres = random.normal(size=(CLUSTERS, DIMENSIONS))
    cumulated = np.cumsum(1.0 / np.arange(1, VOCABULARY + 1))
    cumulated /= cumulated[-1]
    words = np.array([f"w{i}{'aeiou'[i % 5]}{'bdgklmnprst'[i % 11]}" for i in range(VOCABULARY)])

    def texts(count: int, length: int) -> list[str]:
        drawn = np.searchsorted(cumulated, random.random((count, length)))
        return [" ".join(words[row]) for row in np.minimum(drawn, VOCABULARY - 1)]

    def vectors(count: int) -> NDArray[np.float32]:
        made = centres[random.integers(0, CLUSTERS, count)] + SPREAD * random.normal(
            size=(count, DIMENSIONS)
        )
        made /= np.linalg.norm(made, axis=1, keepdims=True)
        return made.astype(np.float32)

    asked = owners[random.integers(0, len(owners), queries)]
    return Data(
        tenants=[f"tenant-{owner}" for owner in owners],
        texts=texts(len(owners), WORDS),
        vectors=vectors(len(owners)),
        query_tenants=[f"tenant-{owner}" for owner in asked],
        query_texts=texts(queries, QUERY_WORDS),
        query_vectors=vectors(queries),
    )


def save(data: Data, path: Path) -> None:
    """Write a data set for another process."""
    np.savez(
        path,
        tenants=np.array(data.tenants), texts=np.array(data.texts), vectors=data.vectors,
        query_tenants=np.array(data.query_tenants), query_texts=np.array(data.query_texts),
        query_vectors=data.query_vectors,
    )  # fmt: skip


def load(path: Path) -> Data:
    """Read what `save` wrote."""
    with np.load(path) as file:
        return Data(
            tenants=file["tenants"].tolist(),
            texts=file["texts"].tolist(),
            vectors=file["vectors"],
            query_tenants=file["query_tenants"].tolist(),
            query_texts=file["query_texts"].tolist(),
            query_vectors=file["query_vectors"],
        )


def exact_neighbours(data: Data, k: int) -> list[set[int]]:
    """The true nearest rows of each query within its tenant."""
    rows = data.rows_of()
    truth: list[set[int]] = []
    for tenant, vector in zip(data.query_tenants, data.query_vectors, strict=True):
        own = np.array(rows[tenant])
        order = np.argsort(-(data.vectors[own] @ vector))[:k]
        truth.append(set(own[order].tolist()))
    return truth
