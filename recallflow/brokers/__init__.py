"""What the engine and the client share of Kafka: how brokers are reached, and what their errors mean."""
