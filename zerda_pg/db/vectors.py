"""Vectors on the wire: pgvector's binary form, sent without asking the server for type ids."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg.adapt import Dumper
from psycopg.pq import Format

__all__ = ["HalfvecArrayParam", "HalfvecParam", "parse_halfvec"]


class HalfvecParam:
    """One vector as a parameter, to be cast to halfvec in the statement."""

    def __init__(self, vector: NDArray[np.float32]) -> None:
        self.data = _half(vector)


class HalfvecArrayParam:
    """Vectors (n, d) as a parameter, to be cast to halfvec[] in the statement."""

    def __init__(self, vectors: NDArray[np.float32], element_oid: int) -> None:
        header = struct.pack("!iiIii", 1, 0, element_oid, len(vectors), 1)
        parts = [header]
        for vector in vectors:
            item = _half(vector)
            parts += (struct.pack("!i", len(item)), item)
        self.data = b"".join(parts)


def _half(vector: NDArray[np.float32]) -> bytes:
    """Dimensions and an unused short, then big-endian half floats."""
    return struct.pack("!HH", len(vector), 0) + vector.astype(">f2").tobytes()


class _RawDumper(Dumper):
    """Binary, of unknown type: the cast in the statement tells the server how to read it."""

    format = Format.BINARY
    oid = 0

    def dump(self, obj: Any) -> bytes:
        data: bytes = obj.data
        return data


for _kind in (HalfvecParam, HalfvecArrayParam):
    psycopg.adapters.register_dumper(_kind, _RawDumper)


def parse_halfvec(data: bytes) -> NDArray[np.float32]:
    """(d,) float32 from pgvector's binary form, as `halfvec_send` gives it."""
    return np.frombuffer(data, dtype=">f2", offset=4).astype(np.float32)
