"""KV Ledger: exact memory ledgers for the inference state of large language models."""
