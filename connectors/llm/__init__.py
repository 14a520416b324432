"""Models behind an API with OpenAI's protocol."""
