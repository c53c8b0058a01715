"""The full-screen app of `dojo watch`: exercises at the left, the first thing to fix at the right."""

from __future__ import annotations

import os
import threading
import time
from typing import ClassVar, Final

from rich.console import RenderableType
from rich.text import Text
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.message import Message
from textual.widgets import Footer, OptionList, Static

from gpudojo.model.results import Outcome
from gpudojo.watch import view
from gpudojo.watch.session import Course, Event, ExerciseWork, Session

TICK: Final = 0.5  # seconds between two looks at the clock
WIDE: Final = 100  # columns, from which on the list of exercises has more room
LIST: Final = {False: 28, True: 44}  # columns of the list, by whether there is more room


class Changed(Message):
    """Something is to be shown anew."""

    def __init__(self, event: Event, work: ExerciseWork) -> None:
        super().__init__()
        self.event = event
        self.work = work


class WatchApp(App[None]):
    """Shows a course, and grades what is saved in its folder as long as it is open."""

    TITLE = "dojo watch"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #top { height: 1; padding: 0 1; background: $primary; color: $text; text-style: bold; }
    #exercises { height: 1fr; border: none; padding: 0; background: $surface; scrollbar-size-vertical: 1; }
    .whole #exercises { display: none; }
    #right { scrollbar-size-vertical: 1; }
    #body, #aside { padding: 0 1; }
    .whole #aside { display: none; }
    #status { height: 1; padding: 0 1; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("h", "hint", "hint"),
        Binding("t", "page('timeline')", "timeline"),
        Binding("l", "page('lesson')", "lesson"),
        Binding("n", "next", "next"),
        Binding("r", "again", "again"),
        Binding("question_mark", "page('help')", "help"),
        Binding("q,ctrl+c", "quit", "quit"),
        Binding("d", "dark", show=False),
        Binding("escape", "page('fix')", show=False),
        Binding("pagedown,space", "scroll(1)", show=False, priority=True),
        Binding("pageup", "scroll(-1)", show=False, priority=True),
    ]

    def __init__(self, course: Course, kind: str = "auto") -> None:
        super().__init__()
        self.course = course
        self.session = Session(course, self._tell, kind)
        self.thread = threading.Thread(
            target=self.session.loop, name="gpudojo session", daemon=True
        )
        self.hints, self.page, self.step, self.drawn, self.said = 0, "fix", 0, False, Text()
        self.theme = "textual-dark" if self.dark else "textual-light"

    def _tell(self, event: Event, work: ExerciseWork) -> None:
        self.post_message(Changed(event, work))  # from the session's thread

    @property
    def dark(self) -> bool:
        """What the student has chosen, or else what the terminal says of its background."""
        if self.course.dark is not None:
            return self.course.dark
        return os.environ.get("COLORFGBG", "").rpartition(";")[2] not in ("7", "15")

    def compose(self) -> ComposeResult:
        yield Static(id="top")
        with Horizontal():
            yield OptionList(*("" for _ in self.course.works), id="exercises", markup=False)
            with VerticalScroll(id="right", can_focus=False):
                yield Static(id="body")
                yield Static(id="aside")
        yield Static(id="status")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self.set_interval(TICK, self._tick)
        self.call_after_refresh(self._draw)
        self.thread.start()

    def on_unmount(self) -> None:
        self.session.close()

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    @on(Changed)
    def _changed(self, message: Changed) -> None:
        if self.widgets_gone:
            return
        if message.event == "verdict":
            self._go_to("fix")
        elif message.event == "begun" and self.page == "timeline":
            self.page = "fix"
        self._draw()

    @on(OptionList.OptionHighlighted)
    def _chosen(self, event: OptionList.OptionHighlighted) -> None:
        # The list chooses its first line by itself when it is shown, and tells it late.
        stale = not self.drawn or event.option_index != event.option_list.highlighted
        work = self.course.works[event.option_index]
        if not stale and work is not self.course.current:
            self.course.move(work)
            self._go_to("fix")
            self._draw()

    def action_hint(self) -> None:
        """One more hint, moved to where it can be seen."""
        first = self.course.current.first
        if (
            first is None
            or first.outcome is not Outcome.FAILED
            or self.course.current.broken is not None
        ):
            self.notify(
                "There are hints for a check that fails. The lesson (key l) explains the exercise."
            )
            return
        self.page, self.hints = "fix", self.hints + 1
        self._draw()
        right = self.query_one("#right")
        body = self.query_one("#body")
        self.call_after_refresh(
            lambda: right.scroll_to(y=body.size.height - right.size.height, animate=False)
        )

    def action_page(self, page: str) -> None:
        """Shows a page; the same key again goes back."""
        self._go_to("fix" if page == self.page else page, self.hints)
        self._draw()

    def action_next(self) -> None:
        following = self.course.after(self.course.current)
        if following is not None:
            self.course.move(following)
            self._go_to("fix")
            self._draw()

    def action_again(self) -> None:
        self.session.again(self.course.current)

    def action_dark(self) -> None:
        self.course.dark = not self.dark
        self.theme = "textual-dark" if self.dark else "textual-light"
        self.course.remember()
        self._draw()

    def action_scroll(self, pages: int) -> None:
        right = self.query_one("#right", VerticalScroll)
        right.scroll_page_down(animate=False) if pages > 0 else right.scroll_page_up(animate=False)

    def _go_to(self, page: str, hints: int = 0) -> None:
        self.page = page
        self.hints = hints
        self.query_one("#right").scroll_home(animate=False)

    @property
    def widgets_gone(self) -> bool:
        """Whether the widgets are gone: timers and messages may come later than that."""
        return not self.query("#status")

    def _tick(self) -> None:
        if self.widgets_gone:
            return
        self.step += 1
        said = self._status()
        if said != self.said:  # what is drawn again is sent again, over ssh too
            self.said = said
            self.query_one("#status", Static).update(said)
        if self.course.done and self.page == "fix":
            self.query_one("#body", Static).update(view.celebration(self.course, self.step))

    def _draw(self) -> None:
        if self.widgets_gone:
            return
        self.screen.set_class(self.page != "fix", "whole")  # drawings and lessons need all columns
        self.query_one("#top", Static).update(self._top())
        exercises = self.query_one("#exercises", OptionList)
        exercises.styles.width = LIST[self.size.width >= WIDE]
        width = LIST[self.size.width >= WIDE] - 2  # without an edge, and the bar that scrolls it
        for place, work in enumerate(self.course.works):
            entry = view.entry(work, width, marked=work is self.course.current)
            exercises.replace_option_prompt_at_index(place, entry)
        exercises.highlighted = self.course.works.index(self.course.current)
        self.drawn = True
        if self.page == "fix":
            exercises.focus()  # which it loses when it is hidden
        self.query_one("#body", Static).update(self._body())
        self.query_one("#aside", Static).update(view.aside(self.course))
        self.said = self._status()
        self.query_one("#status", Static).update(self.said)

    def _top(self) -> Text:
        title = Text(f"{self.course.title}  ", no_wrap=True, overflow="ellipsis")
        score = view.score(self.course, 20 if self.size.width >= WIDE else 10)
        title.truncate(max(self.size.width - len(score) - 2, 0), overflow="ellipsis", pad=True)
        return Text.assemble(title, score)

    def _body(self) -> RenderableType:
        if self.page == "timeline":
            return view.timeline(self.course, max(self.size.width - 4, 40))
        if self.page == "lesson":
            return view.lesson(self.course.current, self.dark)
        if self.page == "help":
            return view.keys()
        return view.panel(self.course, self.hints, dark=self.dark)

    def _status(self) -> Text:
        session = self.session
        if session.trouble:
            return Text(f"cannot grade: {session.trouble.splitlines()[-1]}", "red")
        running = session.running
        names = next(iter(self.course.pending.values()), [])
        if running is not None and names:
            if not running.ready:
                return Text("loading torch …")
            waited = time.perf_counter() - session.heard
            long = f" {waited:.0f} s; the next save ends it" if waited > 1 else ""
            return Text(f"grading {names[0]} …{long}")
        if session.took:
            return Text(f"graded in {session.took:.2f} s. Save a file to grade it.")
        return Text("Save a file to grade it.")


def run(course: Course, kind: str) -> None:
    """Until the student quits."""
    app = WatchApp(course, kind)
    app.run()
    app.session.close()
    if app.thread.is_alive():
        app.thread.join()
