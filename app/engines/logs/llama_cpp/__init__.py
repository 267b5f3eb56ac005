"""A llama.cpp log explained."""
