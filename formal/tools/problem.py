"""The one exception that these tools raise for something the user has to know."""


class Problem(Exception):
    """Something to tell the user in one line, without a traceback."""
