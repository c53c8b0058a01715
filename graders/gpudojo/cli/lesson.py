"""`dojo lesson`."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.markdown import Markdown

from gpudojo.cli.options import FILE, which_day, writing
from gpudojo.model import catalogue
from gpudojo.model.exercise import Exercise
from gpudojo.model.lessons import lesson_of, lesson_path


@click.command()
@click.argument("number", required=False)
@click.option("--html", type=FILE, help="Write a page instead; without NUMBER, one with all lessons.")
@click.option("--remake", is_flag=True, help="For authors: run the snippets, and write what they did into the lesson.")
@which_day
def lesson(number: str | None, html: Path | None, remake: bool, day: str) -> None:
    """Show the lesson of an exercise, such as 04; without NUMBER, list the lessons."""
    chosen = _chosen(day, number)
    if remake:
        _remake(day, chosen)
    elif html is not None:
        with writing(html):
            html.write_text(_page(day, chosen), encoding="utf-8")
        click.echo(f"written: {html}")
    elif number is None:
        for exercise in chosen:
            click.echo(f"{exercise.number}  {exercise.title}")
        click.echo(f"To read one, run: dojo lesson {chosen[0].number}")
    else:
        console = Console()
        for text in filter(None, map(lesson_of, chosen)):
            # Colours of the terminal itself, which fit a light and a dark one; in a file, the source.
            console.print(Markdown(text, code_theme="ansi_dark")) if console.is_terminal else click.echo(text)


def _chosen(day: str, number: str | None) -> list[Exercise]:
    """The exercises with a lesson, or the one that a number, a name or a file's name stands for."""
    having = [each for each in catalogue.day(day) if lesson_path(day, each.stem) is not None]
    name = None if number is None else Path(number).stem
    found = [each for each in having if name in (None, each.number, each.number.lstrip("0"), each.stem)]
    if not found:
        there = ", ".join(each.number for each in having)
        raise click.ClickException(
            f"{day} has no lesson {number}; there are: {there}" if there else f"{day} has no lessons"
        )
    return found


def _remake(day: str, chosen: list[Exercise]) -> None:
    from gpudojo.authoring.lesson_records import remake  # only here: it needs torch

    changed = [path for each in chosen if (path := remake(day, each.stem)) is not None]
    for path in changed:
        click.echo(f"written: {path}")
    if not changed:
        click.echo("Everything that was recorded is up to date.")


def _page(day: str, chosen: list[Exercise]) -> str:
    from markdown_it import MarkdownIt
    from markupsafe import Markup

    from gpudojo.report.rendering import page

    made = (MarkdownIt("commonmark").render(text) for each in chosen if (text := lesson_of(each, folded=True)))
    texts = [text.replace("<pre>", '<pre tabindex="0">') for text in made]  # wide ones are scrolled, by keyboard too
    title = f"{chosen[0].number} {chosen[0].title}" if len(chosen) == 1 else catalogue.title(day)
    return page("lesson.html", "", title=title, lessons=[Markup(text) for text in texts])
