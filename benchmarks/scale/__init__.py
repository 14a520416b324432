"""A model of a deployment larger than any machine here: who owns which partition, and what a query waits for."""
