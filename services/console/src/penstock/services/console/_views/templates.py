"""Pages, made of templates that escape whatever is put into them."""

from __future__ import annotations

from importlib import resources
from typing import Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined

from penstock.services.console._views import view as words

STATIC: Final = {"console.css": "text/css", "console.js": "text/javascript", "console.svg": "image/svg+xml"}


class Templates:
    """The templates and static files of the package."""

    def __init__(self) -> None:
        self._environment = Environment(
            loader=PackageLoader("penstock.services.console", "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(
            seconds=words.seconds_words,
            bytes=words.bytes_words,
            count=words.count_words,
            rate=words.rate_words,
            usd=words.usd_words,
            shard=words.shard_words,
            plural=words.plural,
        )
        self._environment.globals["url"] = url
        folder = resources.files("penstock.services.console") / "static"
        self.static = {name: (folder / name).read_bytes() for name in STATIC}

    def render(self, name: str, **values: Any) -> str:
        """A page."""
        return self._environment.get_template(name).render(**values)


def url(path: str, **query: object) -> str:
    """A path of the console with a query."""
    return f"{path}?{urlencode(query)}" if query else path
