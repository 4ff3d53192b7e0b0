"""Persistent memory for AI agents on Postgres and pgvector."""
