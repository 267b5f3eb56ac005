"""Models and devices as data, each fact with its source, loaded when asked for."""
