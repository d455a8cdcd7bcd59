"""What goes wrong in a way that the person who started the job can put right."""


class PipelineError(Exception):
    """The text says what is wrong and what to do, and is all that a command line shows."""
