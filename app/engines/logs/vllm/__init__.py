"""A vLLM log explained."""
