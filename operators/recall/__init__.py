"""From a query to an answer."""
