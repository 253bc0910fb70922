"""The decoding methods. Each advances one request by generators of forward passes; see `task`."""

from collections.abc import Callable

from parspec.decoding.autoregressive import autoregressive
from parspec.decoding.smc import smc
from parspec.decoding.speculative import speculative
from parspec.decoding.task import Decoding, Task

METHODS: dict[str, Callable[[Task], Decoding]] = {
    "autoregressive": autoregressive,
    "speculative": speculative,
    "smc": smc,
}
