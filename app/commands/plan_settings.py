"""An engine's settings on the command line: repeated options, one text of several, or both."""

from __future__ import annotations

from app import cli


def settings_of(pairs: list[str] | None, text: str | None) -> dict[str, object]:
    """Return the request's `settings` from repeated options and one text of several."""
    from app.domain.errors import DomainError
    from app.readers.settings_text import parse_settings

    found: dict[str, object] = {}
    try:
        found |= parse_settings(text or "")
        for pair in pairs or ():
            found |= _one_setting(pair)
    except DomainError as error:
        cli.fail(str(error))
    return found


def _one_setting(pair: str) -> dict[str, object]:
    """Return a setting whose value may have spaces and quotes, as the shell has passed it."""
    from app.readers.settings_text import own_name, value_of_setting

    name, equals, value = pair.partition("=")
    if not equals or not name:
        cli.fail(f"setting: give name=value, got {pair}")
    own = own_name(name.lstrip("-"))
    return {own: value_of_setting(own, value, field=name)}


def joined(
    engine: str, options: dict[str, object], settings: dict[str, object]
) -> dict[str, object]:
    """Return the settings with those that options of the command stand for; none may be both."""
    from app.domain.errors import DomainError
    from app.engines.known import ENGINES
    from app.engines.setting_values import own_names

    aliases = {known.name: dict(known.aliases) for known in ENGINES}
    try:
        own = own_names(settings, aliases.get(engine, {}))
    except DomainError as error:
        cli.fail(str(error))
    for name, value in options.items():
        if own.get(name) is not None:
            cli.fail(f"{name}: given by an option, {value}, and as a setting, {own[name]}")
    return {**options, **own}


def by_engine(settings: dict[str, object]) -> dict[str, dict[str, object]]:
    """Return settings by engine, of names such as `vllm.version`."""
    found: dict[str, dict[str, object]] = {}
    for name, value in settings.items():
        engine, dot, own = name.partition(".")
        if not dot:
            cli.fail(f"{name}: a setting belongs to one engine: name it, as in vllm.{name}")
        found.setdefault(engine, {})[own] = value
    return found
