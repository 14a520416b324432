"""The explorer: a page that shows a person's graph, episodes, and how one question was answered."""
