"""Storage: RocksDB partitions, key layout, codecs, and the per-owner indexes built from them."""
