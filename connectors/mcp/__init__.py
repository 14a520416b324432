"""The MCP server: tools of a language model in, records and responses out."""
