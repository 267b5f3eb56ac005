"""What goes around every request: headers, assets, logs, language."""
