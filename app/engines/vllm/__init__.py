"""What vLLM allocates for its key-value cache and prints about it, release by release."""
