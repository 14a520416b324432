"""What a program does with memory, in words: the same on an engine in its own process and on one behind Kafka."""
