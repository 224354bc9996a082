"""Why a measurement gives no figure: what it measured was not right, or could not be reached."""


class Refused(Exception):
    """The benchmark's own check failed; a figure of a wrong answer would mislead, so there is none."""
