"""The full-screen app of `dojo watch`: exercises at the left, what to fix at the right."""

from __future__ import annotations

import os
import threading
import time
from typing import ClassVar, Final, Literal

from rich.console import RenderableType
from rich.text import Text
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.message import Message
from textual.widgets import OptionList, Static

from gpudojo.model.lessons import has_lesson
from gpudojo.model.results import Outcome
from gpudojo.watch import view
from gpudojo.watch.course import Course, ExerciseWork
from gpudojo.watch.session import Event, Session

TICK_SECONDS: Final = 0.5  # between two looks at the clock
WIDE: Final = 100  # columns, from which on the list of exercises has more room
NARROW: Final = 70  # columns, below which the list of exercises is folded into one line
LIST_COLUMNS: Final = {False: 28, True: 44}  # by whether there is more room

# What is shown at the right: the thing to fix, or a page that takes all columns.
Page = Literal["fix", "timeline", "lesson", "help"]


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
    #exercises { height: 1fr; border: none; padding: 0; background: $surface; }
    #exercises { scrollbar-size-vertical: 1; }
    .whole #exercises, .narrow #exercises { display: none; }
    #folded { height: 1; padding: 0 1; background: $surface; display: none; }
    .narrow #folded { display: block; }
    #right { scrollbar-size-vertical: 1; }
    #body, #aside { padding: 0 1; }
    .whole #aside { display: none; }
    #status { height: 1; padding: 0 1; background: $surface; }
    #keys { height: 1; padding: 0 1; background: $panel; color: $text; link-style: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("h", "hint"),
        Binding("t", "page('timeline')"),
        Binding("l", "page('lesson')"),
        Binding("n", "next"),
        Binding("r", "again"),
        Binding("question_mark", "page('help')"),
        Binding("q,ctrl+c", "quit"),
        Binding("d", "dark"),
        Binding("escape", "page('fix')"),
        Binding("pagedown,space", "scroll(1)", priority=True),
        Binding("pageup", "scroll(-1)", priority=True),
        # Where the list is shown, they are its own.
        Binding("down", "step(1)"),
        Binding("up", "step(-1)"),
    ]

    def __init__(self, course: Course, kind: str = "auto") -> None:
        """Prepare the session, which begins to grade when the app is shown.

        `kind` is that of the device.
        """
        super().__init__()
        self.course = course
        self.session = Session(course, self._post_change, kind)
        self.thread = threading.Thread(
            target=self.session.handle_events, name="gpudojo session", daemon=True
        )
        self.hints = 0  # how many are shown
        self.page: Page = "fix"
        self.step = 0  # of the celebration
        self.has_drawn = False
        self.status = Text()  # as it is shown
        self._choose_theme()

    def _post_change(self, event: Event, work: ExerciseWork) -> None:
        """Put a change into the app's messages; called by the session, in its thread."""
        self.post_message(Changed(event, work))

    @property
    def dark(self) -> bool:
        """What the student has chosen, or else what the terminal says of its background."""
        if self.course.dark is not None:
            return self.course.dark
        colours = os.environ.get("COLORFGBG", "")  # such as "15;0", the background last
        background = colours.rpartition(";")[2]
        return background not in ("7", "15")

    def _choose_theme(self) -> None:
        """Use textual's theme for a dark or a light background."""
        self.theme = "textual-light"
        if self.dark:
            self.theme = "textual-dark"

    @property
    def is_narrow(self) -> bool:
        """True if the list of exercises is folded into one line."""
        return self.size.width < NARROW

    @property
    def is_wide(self) -> bool:
        """True if the list of exercises has more room."""
        return self.size.width >= WIDE

    def compose(self) -> ComposeResult:
        """Yield the widgets, which are empty until `_draw_all`."""
        yield Static(id="top")
        yield Static(id="folded")
        with Horizontal():
            empty_entries = [""] * len(self.course.works)
            yield OptionList(*empty_entries, id="exercises", markup=False)
            with VerticalScroll(id="right", can_focus=False):
                yield Static(id="body")
                yield Static(id="aside")
        yield Static(id="status")
        yield Static(id="keys")

    def on_mount(self) -> None:
        """Draw everything, and begin to grade."""
        self.set_interval(TICK_SECONDS, self._show_progress)
        self.call_after_refresh(self._draw_all)
        self.thread.start()

    def on_unmount(self) -> None:
        """End the session."""
        self.session.close()

    def on_resize(self) -> None:
        """Draw everything anew, for another width."""
        self.call_after_refresh(self._draw_all)

    @on(Changed)
    def _show_change(self, message: Changed) -> None:
        """Show what the session has to show. A verdict leads back to the thing to fix."""
        if self.widgets_gone:
            return
        if message.event == "verdict":
            self._go_to("fix")
        elif message.event == "begun" and self.page == "timeline":
            self.page = "fix"
        self._draw_all()

    @on(OptionList.OptionHighlighted)
    def _select_exercise(self, event: OptionList.OptionHighlighted) -> None:
        """Make the exercise that was chosen in the list the current one, and keep that."""
        # The list chooses its first line by itself when it is shown, and tells it late.
        if not self.has_drawn or event.option_index != event.option_list.highlighted:
            return
        work = self.course.works[event.option_index]
        if work is not self.course.current:
            self._move_to(work)

    def _move_to(self, work: ExerciseWork) -> None:
        """Make an exercise the current one, keep that, and show what is to fix in it.

        Raises BadDay or OSError where the day's own files cannot be read.
        """
        self.course.move_to(work)
        self._go_to("fix")
        self._draw_all()

    # Keys

    def action_hint(self) -> None:
        """Show one more hint, moved to where it can be seen."""
        work = self.course.current
        is_failing = work.first is not None and work.first.outcome is Outcome.FAILED
        if work.broken is not None or not is_failing:
            text = "There are hints for a check that fails."
            if has_lesson(work.exercise):
                text += " The lesson (key l) explains the exercise."
            self.notify(text)
            return
        self.page = "fix"
        self.hints += 1
        self._draw_all()
        self.call_after_refresh(self._scroll_to_last_hint)

    def _scroll_to_last_hint(self) -> None:
        """Show the end of the thing to fix at the lower edge."""
        right = self.query_one("#right")
        body = self.query_one("#body")
        hidden_lines = body.size.height - right.size.height
        right.scroll_to(y=hidden_lines, animate=False)

    def action_page(self, page: Page) -> None:
        """Show a page. The same key again goes back."""
        if page == self.page:
            page = "fix"
        self._go_to(page, self.hints)
        self._draw_all()

    def action_next(self) -> None:
        """Go to the next exercise that is not done."""
        following = self.course.work_after(self.course.current)
        if following is not None:
            self._move_to(following)

    def action_step(self, lines: int) -> None:
        """Scroll a page by a line; at the thing to fix, go to another exercise.

        That is the one below in the list if `lines` is positive, else the one above; it is kept for
        the next time.
        """
        if self.page != "fix":
            right = self.query_one("#right", VerticalScroll)
            right.scroll_relative(y=lines, animate=False)
            return
        works = self.course.works
        index = works.index(self.course.current) + lines
        self._move_to(works[index % len(works)])

    def action_again(self) -> None:
        """Grade the exercise again."""
        self.session.grade_again(self.course.current)

    def action_dark(self) -> None:
        """Change from dark to light, or back, and remember it.

        Raises BadDay and OSError where a file of the day cannot be read.
        """
        self.course.dark = not self.dark
        self._choose_theme()
        self.course.write_progress()
        self._draw_all()

    def action_scroll(self, pages: int) -> None:
        """Scroll by one page: down if `pages` is positive."""
        right = self.query_one("#right", VerticalScroll)
        if pages > 0:
            right.scroll_page_down(animate=False)
        else:
            right.scroll_page_up(animate=False)

    # Drawing

    def _go_to(self, page: Page, hints: int = 0) -> None:
        """Choose a page, from its top. It is shown by the next `_draw_all`."""
        self.page = page
        self.hints = hints
        self.query_one("#right").scroll_home(animate=False)

    @property
    def widgets_gone(self) -> bool:
        """True at the end: timers and messages may come later than the widgets go."""
        return not self.query("#status")

    def _show_progress(self) -> None:
        """Show how long something takes, and move the colours of the celebration."""
        if self.widgets_gone:
            return
        self.step += 1
        status = self._status_line()
        if status != self.status:  # what is drawn again is sent again, over ssh too
            self._show_status(status)
        if self.course.done and self.page == "fix":
            page = view.celebration_page(self.course, self.step)
            self.query_one("#body", Static).update(page)

    def _draw_all(self) -> None:
        """Show everything anew; nothing, where the widgets are gone.

        Raises BadDay or OSError where the lesson that is shown, or hints or mistakes of the day,
        cannot be read.
        """
        if self.widgets_gone:
            return
        self.screen.set_class(self.page != "fix", "whole")  # drawings and lessons need all columns
        self.screen.set_class(self.is_narrow, "narrow")
        room = self.size.width - 2  # without the padding
        self.query_one("#top", Static).update(self._top_line())
        self.query_one("#folded", Static).update(view.folded_list(self.course, room))
        self.query_one("#keys", Static).update(
            view.key_line(room, has_lesson(self.course.current.exercise))
        )
        self._draw_list()
        self.has_drawn = True
        self.query_one("#body", Static).update(self._page_content())
        self.query_one("#aside", Static).update(view.aside_panel(self.course))
        self._show_status(self._status_line())

    def _draw_list(self) -> None:
        """Show the list of exercises anew, with the current one selected."""
        exercises = self.query_one("#exercises", OptionList)
        columns = LIST_COLUMNS[self.is_wide]
        exercises.styles.width = columns
        for index, work in enumerate(self.course.works):
            # Without an edge, and the bar that scrolls the list.
            is_current = work is self.course.current
            entry = view.list_entry(work, columns - 2, is_current)
            exercises.replace_option_prompt_at_index(index, entry)
        exercises.highlighted = self.course.works.index(self.course.current)
        if self.page == "fix" and not self.is_narrow:
            exercises.focus()  # which it loses when it is hidden

    def _show_status(self, status: Text) -> None:
        """Show a line at the bottom, and remember it."""
        self.status = status
        self.query_one("#status", Static).update(status)

    def _top_line(self) -> Text:
        """The first line of the screen: the title of the day, and the points.

        The title is cut where there is no room.
        """
        title = Text(f"{self.course.title}  ", no_wrap=True, overflow="ellipsis")
        width_of_bar = 10
        if self.is_wide:
            width_of_bar = 20
        elif self.is_narrow:
            width_of_bar = 0
        score = view.score_line(self.course, width_of_bar)
        room = max(self.size.width - len(score) - 2, 0)
        title.truncate(room, overflow="ellipsis", pad=True)
        return Text.assemble(title, score)

    def _page_content(self) -> RenderableType:
        """What is shown at the right, by the page that was chosen.

        Raises OSError for a lost lesson, and BadDay or OSError where hints or mistakes of the day
        cannot be read.
        """
        if self.page == "timeline":
            width = max(self.size.width - 4, 40)
            return view.timeline_page(self.course, width)
        if self.page == "lesson":
            return view.lesson_page(self.course.current, self.dark)
        if self.page == "help":
            return view.help_page(has_lesson(self.course.current.exercise))
        return view.fix_panel(self.course, self.hints, dark=self.dark)

    def _status_line(self) -> Text:
        """The last line but one of the screen.

        It says what the session does now, why it cannot, or how long the last verdict took.
        """
        session = self.session
        if session.trouble:
            last_line = session.trouble.splitlines()[-1]
            return Text(f"cannot grade: {last_line}", "red")
        names = next(iter(self.course.pending.values()), [])
        if session.loading:
            return Text("loading torch …")
        if session.running is not None and names:
            text = f"grading {names[0]} …"
            waited = time.perf_counter() - session.heard
            if waited > 1:
                text += f" {waited:.0f} s; the next save ends it"
            return Text(text)
        if session.took:
            return Text(f"graded in {session.took:.2f} s. Save a file to grade it.")
        return Text("Save a file to grade it.")


def run_app(course: Course, device_kind: str) -> None:
    """Show a course, and grade what is saved in its folder, until the student quits.

    Files are graded on a device of this kind; the progress is written at the end, and a line about
    it is left on the terminal.
    """
    app = WatchApp(course, device_kind)
    app.run()
    app.session.close()
    if app.thread.is_alive():  # not where the app ended before it began
        app.thread.join()
    print(view.last_line(course))
