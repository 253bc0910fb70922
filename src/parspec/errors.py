"""The exception every foreseeable fault ends in: one line that says what is wrong and what to do."""


class ParspecError(Exception):
    """A fault the user can mend. The message is one line: what is wrong, then what to do about it.

    The command line prints it without a traceback and exits with status 2.
    """


class InvalidRequestError(ParspecError, ValueError):
    """A prompt or a parameter that cannot be served as given; nothing has been run.

    Args:
        message: One line: what is wrong, then what to do.
        parameter: Name of the parameter at fault, where it is a single one.
    """

    def __init__(self, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class PromptTooLongError(InvalidRequestError):
    """The prompt is longer than the model's context."""


class ModelError(ParspecError):
    """A model, a tokenizer or a pair of them that cannot be found, read or served correctly."""


class DownloadError(ModelError):
    """Weights could not be fetched, or what was fetched is not what was asked for."""


class QueueFullError(ParspecError):
    """Too many requests are waiting; nothing has been queued, and a later try may succeed."""


class EngineStoppedError(ParspecError):
    """The engine has failed or was closed while the request was open, or before it came."""


class OutOfMemoryError(ParspecError):
    """One group alone needs more memory than the budget; says how much and what to lower."""
