"""Enrichment: prompts for language models and embedding services, and the events derived from their answers."""
