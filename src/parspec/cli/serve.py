"""``parspec serve``: an OpenAI-compatible server."""

import ipaddress
import logging
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from parspec.cli.console import note
from parspec.cli.loading import load
from parspec.cli.options import DEFAULT_TARGET, MethodOptions, ModelOptions, expand_options, paragraphs
from parspec.errors import InvalidRequestError

HELP = paragraphs(
    """
    Serve a model over HTTP, as the OpenAI API does.

    Clients of that API work unchanged against http://HOST:PORT/v1. A page to talk with the model, and to
    watch its particles, is at http://HOST:PORT/. Method options are defaults: a request may set its own.

    Ctrl-C or SIGTERM stop the server once the running requests are answered; a second one stops it at once.
    """
)

EPILOG = """\
[bold]Examples[/bold]
  parspec serve
  parspec serve ./large --draft ./small --method speculative --port 9000
  parspec serve --host 0.0.0.0 --api-key-file key.txt --max-concurrent 16

Exit status 1 means that the engine has failed. Others are listed by parspec --help.
"""


def _server(help_text: str, **more: Any) -> Any:
    return typer.Option(help=help_text, rich_help_panel="Server", **more)


@expand_options
def serve(
    models: ModelOptions,
    method: MethodOptions,
    model: Annotated[
        str | None,
        typer.Argument(metavar="TARGET", help=f"The large model, as --target. Default: {DEFAULT_TARGET}."),
    ] = None,
    host: Annotated[str, _server("Address to serve on; 0.0.0.0 for all.", show_default=True)] = "127.0.0.1",
    port: Annotated[int, _server("Port; 0 for any.", min=0, max=65535, show_default=True)] = 8000,
    api_key: Annotated[
        str | None, _server("Key that clients must send. Others on the machine can see it: see --api-key-file.")
    ] = None,
    api_key_file: Annotated[
        Path | None, _server("File with that key.", exists=True, dir_okay=False, metavar="FILE")
    ] = None,
    served_model_name: Annotated[
        str | None, _server("Name clients ask for the model by. Default: TARGET.", metavar="NAME")
    ] = None,
    max_concurrent: Annotated[int, _server("Most requests answered at once.", min=1, show_default=True)] = 64,
    max_queue: Annotated[
        int, _server("Most requests waiting; further ones get status 429.", min=0, show_default=True)
    ] = 256,
    max_tokens: Annotated[
        int, _server("Most tokens of an answer to a chat that names no limit.", min=1, show_default=True)
    ] = 4096,
    max_model_len: Annotated[
        int | None, _server("Most tokens of prompt and answer together. Default: the models' own.", min=2)
    ] = None,
    cache_memory: Annotated[
        float | None, _server("GiB for key/value caches. Default: half of what is free after loading.", min=0)
    ] = None,
    grace: Annotated[
        float, _server("Seconds that running requests have when the server is stopped.", min=0, show_default=True)
    ] = 30.0,
    cors_origin: Annotated[
        list[str] | None, _server("Web origin whose pages may call the server; may be repeated.", metavar="ORIGIN")
    ] = None,
    log_requests: Annotated[
        bool, _server("Log prompts and answers; without this, no text of a request is logged.")
    ] = False,
) -> int:
    """Serve a model."""
    from dataclasses import replace

    from parspec.async_llm import AsyncLLM
    from parspec.server.serve import bind
    from parspec.server.serve import serve as run
    from parspec.server.service import ServerConfig, Service

    if model is not None:
        models = replace(models, target=model)
    defaults = method.params()
    config = ServerConfig(
        model_name=served_model_name or models.target,
        max_tokens=max_tokens,
        api_key=_key(api_key, api_key_file),
        cors_origins=tuple(cors_origin or ()),
        log_requests=log_requests,
    )
    if config.api_key is None and not _is_loopback(host):
        note(f"warning: anybody who reaches {host} can use the server: give an --api-key-file")
    logging.basicConfig(stream=sys.stderr, format="parspec: %(levelname)s: %(message)s", level=logging.WARNING)
    logging.getLogger("parspec.server").setLevel(logging.INFO)
    sock = bind(host, port)
    with sock:
        llm = load(models, defaults, keep_draft=True, max_model_len=max_model_len, cache_memory=cache_memory)
        served = AsyncLLM.of(llm, max_concurrent=max_concurrent, max_queue=max_queue)
        return run(Service(served, config), sock, grace, note)


def _key(given: str | None, file: Path | None) -> str | None:
    """The key clients must send.

    Raises:
        InvalidRequestError: It is given twice, or empty.
    """
    if given is not None and file is not None:
        raise InvalidRequestError("--api-key and --api-key-file are both given: use one")
    if file is not None:
        given = file.read_text().strip()
    if given is not None and not (given and given.isascii() and given.isprintable()):
        raise InvalidRequestError("the API key is empty or has characters a header cannot carry: choose another")
    return given


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
