"""MCP server: tools for language models."""
