"""Translations: a .po file for each room of the product, read when a page first needs them."""
