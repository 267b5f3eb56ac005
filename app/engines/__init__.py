"""What real engines allocate and print, each by its own rules."""
