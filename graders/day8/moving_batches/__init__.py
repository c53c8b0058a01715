"""03: batches of any structure on a device, and the golden rule: everything on one."""

from graders.day8.moving_batches import checks_moving, checks_sameness, probes_moving, probes_sameness
from graders.day8.moving_batches.functions import exercise

__all__ = ["checks_moving", "checks_sameness", "exercise", "probes_moving", "probes_sameness"]
