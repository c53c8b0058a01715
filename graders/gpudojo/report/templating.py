"""Renders a page as one self-contained HTML file."""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from gpudojo.model.results_file import number
from gpudojo.report.charts import share
from gpudojo.report.texts import counted, duration, prose, short_id, shown, size


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gpudojo.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=shown,
    )
    environment.filters.update(prose=prose, short_id=short_id, size=size, number=number, duration=duration)
    environment.globals.update(share=share, counted=counted)
    return environment


def page(template: str, script: str, **values: Any) -> str:
    """The text of a page; a browser refuses every style and script in it but these two, by their hashes."""
    style, code = _asset("style.css"), _asset(script) + _asset("stops.js") if script else ""
    policy = f"default-src 'none'; style-src '{_hash(style)}'; base-uri 'none'; form-action 'none'"
    if code:
        policy += f"; script-src '{_hash(code)}'"
    return (
        _environment().get_template(template).render(style=Markup(style), script=Markup(code), policy=policy, **values)
    )


@functools.cache
def _asset(name: str) -> str:
    """A style sheet or script of ours, never a stranger's text: it is not escaped."""
    return resources.files("gpudojo.report").joinpath("templates", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
