"""Commands that refuse an option given twice where only one of its values would count."""

from __future__ import annotations

import click


class StrictCommand(click.Command):
    """A command that refuses an option given twice, unless the option takes several values.

    click itself uses the last value and drops the others in silence.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments as click does.

        Raises UsageError for an option that is given twice and of which only one value would count,
        and for what click refuses.
        """
        _, _, parameters = self.make_parser(ctx).parse_args(list(args))
        given: set[click.Option] = set()
        for parameter in parameters:
            if not isinstance(parameter, click.Option) or _may_be_repeated(parameter):
                continue
            if parameter in given:
                name = max(parameter.opts, key=len)
                raise click.UsageError(f"{name} is given twice, and takes one value", ctx)
            given.add(parameter)
        return super().parse_args(ctx, args)


class StrictGroup(click.Group):
    """A group whose commands refuse an option given twice."""

    command_class = StrictCommand


def _may_be_repeated(option: click.Option) -> bool:
    """True for an option that takes several values, and for one without any."""
    return option.multiple or option.is_flag or option.count
