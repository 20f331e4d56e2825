"""A gateway from Python, blocking and with asyncio.

    with Client("127.0.0.1:50060") as client:
        for chunk in client.generate("Why is the sky blue?", max_tokens=64):
            print(chunk, end="")
        print(client.complete("And the sea?", temperature=0).text)

A stream is an iterator of chunks that keeps the answer so far (`.text`, `.started`, `.finished`, `.answer`). Leaving
its `with` block, closing it or dropping it cancels the request, and with it all that the services hold for it. Errors
are those of `forerun.errors`. With `retries`, a gateway that goes away in the middle is asked again for the rest:
nothing is lost or comes twice, since the prompt's ids, the seed and the tokens received determine what follows.
`resume` does the same later. An address may list gateways, `ipv4:10.0.0.1:50060,10.0.0.2:50060`: any can go on.
"""

from forerun.client.aio import AsyncClient, AsyncStream
from forerun.client.answer import Answer, Chunk, Finished, Round, SpeculationUsage, Started, Timing
from forerun.client.blocking import Client, Stream
from forerun.client.prompt import Message, Options, Prompt

__all__ = [
    "Answer",
    "AsyncClient",
    "AsyncStream",
    "Chunk",
    "Client",
    "Finished",
    "Message",
    "Options",
    "Prompt",
    "Round",
    "SpeculationUsage",
    "Started",
    "Stream",
    "Timing",
]
