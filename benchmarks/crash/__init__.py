"""Kill the Kafka flow again and again, and compare what came out with a run that nobody killed."""
